-- How a task is retried, changed at run time; what is null is left to the queue
-- and the defaults. A policy that is declared in code gives way to one that an
-- operator has set.
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
  insert into holdfast.retry_policy as p (task, max_attempts, base, factor, cap, jitter, declared)
  values (
    set_retry_policy.task, set_retry_policy.max_attempts, set_retry_policy.base, set_retry_policy.factor,
    set_retry_policy.cap, set_retry_policy.jitter, set_retry_policy.declared
  )
  on conflict (task) do update
    set
      max_attempts = excluded.max_attempts, base = excluded.base, factor = excluded.factor,
      cap = excluded.cap, jitter = excluded.jitter, declared = excluded.declared
    where p.declared or not excluded.declared;
  if not set_retry_policy.declared then
    perform holdfast.note('set retry policy', set_retry_policy.task);
  end if;
end
$$;
comment on function holdfast.set_retry_policy(text, integer, interval, double precision, interval, double precision, boolean) is
  'Say how a task is retried from now on; with declared, only where no operator has said otherwise.';

-- For a worker, that says what its code does, and may say no more.
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
    declare_retry_policy.task, declare_retry_policy.max_attempts, declare_retry_policy.base, declare_retry_policy.factor,
    declare_retry_policy.cap, declare_retry_policy.jitter, true)
$$;
comment on function holdfast.declare_retry_policy(text, integer, interval, double precision, interval, double precision) is
  'Say how the code of a task wants it to be retried; what an operator has said goes before it.';

-- Forget what was set: the task follows its queue and the default again, and a
-- worker that declares a policy may write it at its next start.
create or replace function holdfast.reset_retry_policy(task text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_unrestricted('a retry policy');
  delete from holdfast.retry_policy p where p.task = reset_retry_policy.task;
  if not found then
    return false;
  end if;
  perform holdfast.note('reset retry policy', reset_retry_policy.task);
  return true;
end
$$;
comment on function holdfast.reset_retry_policy(text) is 'Forget how a task is retried, so that its queue and the default decide; whether there was anything to forget.';

create or replace function holdfast.list_retry_policies()
returns table (task text, max_attempts integer, base interval, factor double precision, cap interval, jitter double precision,
  declared boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select p.task, p.max_attempts, p.base, p.factor, p.cap, p.jitter, p.declared
  from holdfast.retry_policy p
  order by p.task
$$;
comment on function holdfast.list_retry_policies() is 'How each task is retried that says so itself; a null is left to its queue and the default.';
