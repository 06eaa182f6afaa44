-- Describe the states, for people and for queries.
-- holdfast: role producer worker viewer
create or replace function holdfast.is_terminal(state text)
returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  answer boolean;
begin
  select s.terminal into answer from holdfast.state s where s.name = is_terminal.state;
  if not found then
    raise exception using
      errcode = 'HF008',
      message = format('%L is not a state of a job', is_terminal.state),
      detail = jsonb_build_object('field', 'state', 'value', is_terminal.state),
      hint = 'The states are listed in holdfast.state: '
        || (select string_agg(s.name, ', ') from holdfast.state s) || '.';
  end if;
  return answer;
end
$$;
comment on function holdfast.is_terminal(text) is 'Return whether a state is an end state.';
