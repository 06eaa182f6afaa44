-- Write and read the audit log.

create or replace function holdfast.note(action text, target text, detail jsonb default null)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.audit (at, who, action, target, detail)
  values (holdfast.clock(), session_user, note.action, note.target, note.detail)
$$;
comment on function holdfast.note(text, text, jsonb) is 'Write a line to the audit log.';

-- Return the audit log, the latest entries first.
-- holdfast: role operator
create or replace function holdfast.audit_log(
  amount integer default 50,
  target text default null,
  action text default null,
  who text default null,
  since timestamptz default null
)
returns setof holdfast.audit
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_amount(audit_log.amount);
  perform holdfast.check_unrestricted('the audit log');
  return query
    select a.*
    from holdfast.audit a
    where (audit_log.target is null or a.target = audit_log.target)
      and (audit_log.action is null or a.action = audit_log.action)
      and (audit_log.who is null or a.who = audit_log.who)
      and (audit_log.since is null or a.at >= audit_log.since)
    order by a.id desc
    limit audit_log.amount;
end
$$;
comment on function holdfast.audit_log(integer, text, text, text, timestamptz) is
  'Return who did what and when, the latest first: by target (a queue, a job, a schedule), action, name and '
  'time.';
