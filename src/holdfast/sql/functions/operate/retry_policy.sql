-- Set how a task is retried, at run time. A null leaves a value to the queue and the
-- defaults. A policy that an operator has set wins over one that is declared in code.
-- holdfast: role operator
create or replace function holdfast.set_retry_policy(
  task text,
  max_attempts integer default null,
  base interval default null,
  factor double precision default null,
  cap interval default null,
  jitter double precision default null,
  declared boolean default false
)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.retry_policy;
  given holdfast.retry_policy;
begin
  perform holdfast.check_name('task', set_retry_policy.task);
  perform holdfast.check_unrestricted('a retry policy');
  perform holdfast.check_max_attempts(set_retry_policy.max_attempts);
  if base not between interval '0' and interval '100 years' then
    perform holdfast.refuse_value('base', base::text, 'must be between 0 and 100 years');
  end if;
  if cap not between interval '0' and interval '100 years' then
    perform holdfast.refuse_value('cap', cap::text, 'must be between 0 and 100 years');
  end if;
  if factor not between 1 and 100 then
    perform holdfast.refuse_value('factor', factor::text, 'must be between 1 and 100');
  end if;
  if jitter not between 0 and 1 then
    perform holdfast.refuse_value('jitter', jitter::text, 'must be between 0 and 1');
  end if;
  if set_retry_policy.declared and exists (
    select
    from holdfast.retry_policy p
    where p.task = set_retry_policy.task
      and (not p.declared
        or (p.max_attempts, p.base, p.factor, p.cap, p.jitter) is not distinct from (
          set_retry_policy.max_attempts, set_retry_policy.base, set_retry_policy.factor, set_retry_policy.cap,
          set_retry_policy.jitter))
  ) then
    return; -- the usual case when a worker starts: it then waits for nobody
  end if;
  -- One change at a time, as in configure(): all changes count in one row. A worker that starts
  -- does not wait for changes of other settings.
  if not set_retry_policy.declared then
    perform from holdfast.queue q where q.name = '*' for update;
  end if;
  perform from holdfast.policy_watch w for update;
  select p.* into known from holdfast.retry_policy p where p.task = set_retry_policy.task;
  insert into holdfast.retry_policy as p (task, max_attempts, base, factor, cap, jitter, declared)
  values (
    set_retry_policy.task, set_retry_policy.max_attempts, set_retry_policy.base, set_retry_policy.factor,
    set_retry_policy.cap, set_retry_policy.jitter, set_retry_policy.declared
  )
  on conflict (task) do update
    set
      max_attempts = excluded.max_attempts, base = excluded.base, factor = excluded.factor,
      cap = excluded.cap, jitter = excluded.jitter, declared = excluded.declared
    where (p.declared or not excluded.declared)
      and (p.max_attempts, p.base, p.factor, p.cap, p.jitter, p.declared) is distinct from (
        excluded.max_attempts, excluded.base, excluded.factor, excluded.cap, excluded.jitter,
        excluded.declared);
  if not set_retry_policy.declared then
    select p.* into given from holdfast.retry_policy p where p.task = set_retry_policy.task;
    perform holdfast.note('set retry policy', set_retry_policy.task, holdfast.policy_changes(known, given));
  end if;
end
$$;
comment on function holdfast.set_retry_policy(
  text, integer, interval, double precision, interval, double precision, boolean) is
  'Set how a task is retried from now on. With declared, only if no operator has set a policy.';

-- A worker may call this one only: it declares what its code says.
-- holdfast: role worker operator
create or replace function holdfast.declare_retry_policy(
  task text,
  max_attempts integer default null,
  base interval default null,
  factor double precision default null,
  cap interval default null,
  jitter double precision default null
)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.set_retry_policy(
    declare_retry_policy.task, declare_retry_policy.max_attempts, declare_retry_policy.base,
    declare_retry_policy.factor, declare_retry_policy.cap, declare_retry_policy.jitter, true)
$$;
comment on function holdfast.declare_retry_policy(
  text, integer, interval, double precision, interval, double precision) is
  'Set how a task is retried, as its code says. A policy that an operator has set wins.';

-- The task follows its queue and the default again. A worker that declares a policy may write it
-- at its next start.
-- holdfast: role operator
create or replace function holdfast.reset_retry_policy(task text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.retry_policy;
begin
  perform holdfast.check_unrestricted('a retry policy');
  perform from holdfast.queue q where q.name = '*' for update;
  perform from holdfast.policy_watch w for update;
  delete from holdfast.retry_policy p where p.task = reset_retry_policy.task returning p.* into known;
  if not found then
    return false;
  end if;
  perform holdfast.note('reset retry policy', reset_retry_policy.task, holdfast.policy_changes(known, null));
  return true;
end
$$;
comment on function holdfast.reset_retry_policy(text) is
  'Remove the retry policy of a task, so that its queue and the default decide. Returns whether there was '
  'one.';

-- Return the differences, for the audit log, in the form that configure() writes.
create or replace function holdfast.policy_changes(known holdfast.retry_policy, given holdfast.retry_policy)
returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_object_agg(k, jsonb_build_array(to_jsonb(known) -> k, to_jsonb(given) -> k))
  from unnest(array['max_attempts', 'base', 'factor', 'cap', 'jitter']) k
  where to_jsonb(known) ->> k is distinct from to_jsonb(given) ->> k
$$;
comment on function holdfast.policy_changes(holdfast.retry_policy, holdfast.retry_policy) is
  'Return the differences between two policies of a task, before and after.';

-- holdfast: role viewer
create or replace function holdfast.list_retry_policies()
returns table (
  task text, max_attempts integer, base interval, factor double precision, cap interval,
  jitter double precision,
  declared boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select p.task, p.max_attempts, p.base, p.factor, p.cap, p.jitter, p.declared
  from holdfast.retry_policy p
  order by p.task
$$;
comment on function holdfast.list_retry_policies() is
  'List the retry policies of tasks. A null is left to the queue and the default.';

-- Called for each job whose code declares its max_attempts.
create or replace function holdfast.has_operator_policy(task text)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (
    select from holdfast.retry_policy p where p.task = has_operator_policy.task and not p.declared);
end
$$;
comment on function holdfast.has_operator_policy(text) is
  'Return whether an operator has set how this task is retried.';
