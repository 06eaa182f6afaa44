-- Who may do what: the roles of those who use Holdfast, and their rights, as data.
--
-- The roles belong to the cluster, and cannot log in: a DBA grants them to those who
-- do. `holdfast migrate --roles` makes them and lets them into this database; from
-- then on every migrate gives them exactly what is written here. What a DBA wants to
-- grant besides belongs to a role of the DBA's own.

-- One line for each function and view that anybody may use. What a viewer may, an
-- operator may too; `owner` means nobody else. What has no line is internal.
create or replace function holdfast.role_rights()
returns table (kind text, name text, role text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  with given (kind, name, roles) as (
    values
      -- producing
      ('function', 'enqueue', 'producer'),
      ('function', 'enqueue_many', 'producer'),
      ('function', 'lane', 'producer'),
      ('function', 'places', 'producer'),
      ('function', 'new_id', 'producer worker viewer'),
      ('function', 'clock', 'producer worker viewer'),
      ('function', 'is_terminal', 'producer worker viewer'),
      -- waiting for the end
      ('function', 'ends', 'producer viewer'),
      ('function', 'await_jobs', 'producer operator'),
      ('function', 'await_no_more', 'producer operator'),
      -- consuming
      ('function', 'register', 'worker'),
      ('function', 'claim', 'worker'),
      ('function', 'claimed', 'worker'),
      ('function', 'heartbeat', 'worker'),
      ('function', 'sleep', 'worker'),
      ('function', 'leave', 'worker'),
      ('function', 'disown', 'worker'),
      ('function', 'not_held', 'worker'),
      ('function', 'cancels', 'worker'),
      ('function', 'channel', 'worker'),
      ('function', 'memory', 'worker'),
      -- reporting
      ('function', 'complete', 'worker'),
      ('function', 'fail', 'worker'),
      ('function', 'snooze', 'worker'),
      ('function', 'release', 'worker'),
      ('function', 'finish', 'worker'),
      ('function', 'start', 'worker'),
      ('function', 'progress', 'worker'),
      ('function', 'progress_many', 'worker'),
      ('function', 'publish', 'worker'),
      ('function', 'publish_many', 'worker'),
      ('function', 'keep_step', 'worker'),
      ('function', 'keep_checkpoint', 'worker'),
      -- duties
      ('function', 'tick', 'worker operator'),
      ('function', 'fire', 'worker'),
      ('function', 'promote', 'worker'),
      ('function', 'recover', 'worker operator'),
      ('function', 'advance', 'worker'),
      ('function', 'upkeep', 'worker'),
      ('function', 'check_heads', 'worker'),
      ('function', 'fold_stats', 'worker'),
      ('function', 'sweep', 'worker'),
      ('function', 'report_duty', 'worker'),
      -- what code says of its tasks
      ('function', 'declare_retry_policy', 'worker operator'),
      ('function', 'declare_schedule', 'worker operator'),
      -- looking
      ('function', 'job', 'producer viewer'),
      ('function', 'list_jobs', 'viewer'),
      ('function', 'list_dead', 'viewer'),
      ('function', 'job_errors', 'viewer'),
      ('function', 'job_steps', 'viewer'),
      ('function', 'job_checkpoint', 'viewer'),
      ('function', 'read_events', 'viewer'),
      ('function', 'event_cursor', 'viewer'),
      ('function', 'stats', 'worker viewer'),
      ('function', 'count_jobs', 'worker viewer'),
      ('function', 'statistics', 'viewer'),
      ('function', 'stat_bounds', 'viewer'),
      ('function', 'health', 'viewer'),
      ('function', 'gauges', 'worker viewer'),
      ('function', 'why', 'viewer'),
      ('function', 'settings', 'viewer'),
      ('function', 'list_partitions', 'viewer'),
      ('function', 'list_queues', 'worker viewer'),
      ('function', 'list_workers', 'worker viewer'),
      ('function', 'list_retry_policies', 'viewer'),
      ('function', 'retry_delay', 'worker viewer'),
      ('function', 'list_schedules', 'worker viewer'),
      ('function', 'upcoming', 'viewer'),
      ('function', 'next_occurrence', 'viewer'),
      ('function', 'cron_in_words', 'viewer'),
      -- operating
      ('function', 'cancel', 'producer operator'),
      ('function', 'cancel_many', 'producer operator'),
      ('function', 'cancel_matching', 'operator'),
      ('function', 'run_now', 'operator'),
      ('function', 'reschedule', 'operator'),
      ('function', 'pause', 'operator'),
      ('function', 'resume', 'operator'),
      ('function', 'configure', 'operator'),
      ('function', 'audit_log', 'operator'),
      ('function', 'doctor', 'operator'),
      ('function', 'give_up', 'operator'),
      ('function', 'replay', 'operator'),
      ('function', 'replay_many', 'operator'),
      ('function', 'purge', 'operator'),
      ('function', 'purge_many', 'operator'),
      ('function', 'set_retry_policy', 'operator'),
      ('function', 'reset_retry_policy', 'operator'),
      ('function', 'add_schedule', 'operator'),
      ('function', 'change_schedule', 'operator'),
      ('function', 'pause_schedule', 'operator'),
      ('function', 'resume_schedule', 'operator'),
      ('function', 'remove_schedule', 'operator'),
      ('function', 'run_schedule', 'operator'),
      -- what the views ask: who reads a view needs the rights of its functions
      ('function', 'sees_payloads', 'viewer'),
      ('function', 'unrestricted', 'viewer'),
      ('function', 'in_reach', 'viewer'),
      ('function', 'queues_in_reach', 'viewer'),
      ('function', 'as_seen', 'viewer'),
      ('function', 'text_as_seen', 'viewer'),
      -- the owner's
      ('function', 'grant_queues', 'owner'),
      ('function', 'revoke_queues', 'owner'),
      ('function', 'list_grants', 'owner'),
      ('function', 'stored_payload', 'owner'),
      ('function', 'due_exports', 'owner'),
      ('function', 'mark_exported', 'owner'),
      ('function', 'export_finished', 'owner'),
      ('function', 'export_event', 'owner'),
      ('function', 'export_columns', 'owner'),
      ('function', 'role_rights', 'owner'),
      -- views
      ('view', 'jobs', 'viewer'),
      ('view', 'queue_stats', 'viewer'),
      ('view', 'task_stats', 'viewer'),
      ('view', 'queue_health', 'viewer'),
      ('view', 'installed', 'producer worker viewer'),
      -- bulk enqueue: the columns of holdfast.job that a COPY may name, and the default of seq
      ('column', 'id', 'producer'),
      ('column', 'lane_id', 'producer'),
      ('column', 'task', 'producer'),
      ('column', 'payload', 'producer'),
      ('column', 'headers', 'producer'),
      ('column', 'max_attempts', 'producer'),
      ('column', 'run_at', 'producer'),
      ('sequence', 'job_seq', 'producer')
  )
  select g.kind, g.name, r.role
  from given g, (values ('producer'), ('worker'), ('viewer'), ('operator'), ('owner')) r (role)
  where r.role = any(string_to_array(g.roles, ' '))
    or r.role = 'operator' and 'viewer' = any(string_to_array(g.roles, ' '))
$$;
comment on function holdfast.role_rights() is
  'Which role may execute which function, read which view, and insert into which column of holdfast.job.';

-- What the data says and what the catalog says, made one: for the roles that have
-- been let into this schema. Only what differs is touched.
create or replace function holdfast.grant_rights()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  command text;
begin
  for round in 1..2 loop -- to take a right on a table away takes those on its columns along
    for command in
      with let_in as (
        select r.oid, r.rolname, substr(r.rolname, length('holdfast_') + 1) as role
        from pg_roles r
        join pg_namespace n on n.nspname = 'holdfast'
        cross join lateral aclexplode(n.nspacl) a
        where a.grantee = r.oid
          and r.rolname in ('holdfast_producer', 'holdfast_worker', 'holdfast_viewer', 'holdfast_operator')
      ),
      -- what could be granted, and who has it
      thing (kind, name, id, target, privilege, acl) as (
        select 'function', p.proname, p.oid, format('%s %s', case p.prokind when 'p' then 'procedure' else 'function' end, p.oid::regprocedure), 'execute', p.proacl
        from pg_proc p
        where p.pronamespace = 'holdfast'::regnamespace
          and p.prokind in ('f', 'p')
        union all
        select
          case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end, c.relname, c.oid,
          case c.relkind when 'S' then 'sequence ' else 'table ' end || c.oid::regclass,
          case c.relkind when 'S' then 'usage' else 'select' end, c.relacl
        from pg_class c
        where c.relnamespace = 'holdfast'::regnamespace
          and c.relkind in ('r', 'p', 'v', 'S')
        union all
        select 'column', a.attname, a.attrelid, format('table holdfast.job'), format('insert (%I)', a.attname), a.attacl
        from pg_attribute a
        where a.attrelid = 'holdfast.job'::regclass
          and a.attnum > 0
          and not a.attisdropped
      ),
      state as (
        select
          t.*, l.rolname,
          exists (select from holdfast.role_rights() r where r.kind = t.kind and r.name = t.name and r.role = l.role) as wanted,
          array(select lower(a.privilege_type) from aclexplode(t.acl) a where a.grantee = l.oid) as has
        from thing t, let_in l
      )
      select
        case when s.wanted
          then format('grant %s on %s to %I', s.privilege, s.target, s.rolname)
          else format('revoke %s on %s from %I', case s.kind when 'column' then format('all (%I)', s.name) else 'all' end, s.target, s.rolname)
        end
      from state s
      where s.wanted and split_part(s.privilege, ' ', 1) <> all(s.has)
        or not s.wanted and cardinality(s.has) > 0
    loop
      execute command;
    end loop;
  end loop;
end
$$;
comment on function holdfast.grant_rights() is 'Give the roles that were let into this schema the rights that are written down, and no other.';

-- Make the roles where the cluster has none yet, and let them in. Databases of one
-- cluster may do this at the same time: whoever comes second finds them made.
create or replace function holdfast.create_roles()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  wanted constant text[] := '{holdfast_producer,holdfast_worker,holdfast_viewer,holdfast_operator}';
  one text;
begin
  foreach one in array wanted loop
    continue when exists (select from pg_roles r where r.rolname = one);
    begin
      execute format('create role %I nologin', one);
    exception
      when duplicate_object or unique_violation then
        null; -- another database was faster
      when insufficient_privilege then
        raise exception using
          errcode = 'insufficient_privilege',
          message = format('there is no role %s, and %s may not create roles', one, current_user),
          hint = format(
            'Let a DBA run: %sThen run holdfast migrate --roles again.',
            (select string_agg(format('create role %I nologin; ', w), '' order by n)
              from unnest(wanted) with ordinality w (w, n)
              where not exists (select from pg_roles r where r.rolname = w)));
    end;
  end loop;
  foreach one in array wanted loop
    if not exists (
      select from pg_namespace n, aclexplode(n.nspacl) a join pg_roles r on r.oid = a.grantee
      where n.nspname = 'holdfast' and r.rolname = one
    ) then
      execute format('grant usage on schema holdfast to %I', one);
    end if;
  end loop;
  perform holdfast.grant_rights();
end
$$;
comment on function holdfast.create_roles() is 'Make the roles of those who use Holdfast where they are missing, and let them into this database.';

-- What a process asks when it starts, whatever its role.
create or replace view holdfast.installed as
select m.name, m.kind, m.checksum, m.version, m.applied_at from holdfast.migration m;
comment on view holdfast.installed is 'The SQL files that made this schema, for everybody who uses it.';
