-- List the settings of queues, with the values that apply.

-- holdfast: role viewer
create or replace function holdfast.settings(queue text default null)
returns setof holdfast.setting
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
#variable_conflict use_column
begin
  if settings.queue <> '*' then
    perform holdfast.check_name('queue', settings.queue);
  end if;
  return query
    select
      n.name, s.name, holdfast.show_setting(e.value, s.kind, s.never), e.own, s.builtin, s.meaning,
      case when s.kind = 'duration' and (e.value #>> '{}')::interval < interval '1000 years'
        then extract(epoch from (e.value #>> '{}')::interval)::double precision end
    from (
      select q.name from holdfast.queue q where settings.queue is null
      union
      select settings.queue where settings.queue is not null
    ) n (name)
    join holdfast.queue d on d.name = '*'
    left join holdfast.queue q on q.name = n.name
    cross join holdfast.known_settings() with ordinality
      s (name, kind, lowest, highest, never, everywhere, builtin, meaning, place)
    cross join lateral (
      select nullif(to_jsonb(q) -> s.name, 'null') as mine, nullif(to_jsonb(d) -> s.name, 'null') as its
    ) v
    cross join lateral (
      select
        coalesce(v.mine, v.its) as value,
        case when n.name = '*' then holdfast.show_setting(v.its, s.kind, s.never) is distinct from s.builtin
          else v.mine is not null end as own
    ) e
    where (not s.everywhere or n.name = '*')
      and (n.name = '*' or (select holdfast.unrestricted()) or holdfast.in_reach(n.name))
    order by n.name collate "C", s.place;
end
$$;
comment on function holdfast.settings(text) is
  'Return the settings of a queue, or of all queues that have any, with the defaults (*) first: the value, '
  'whether it is the queue''s own (for *: whether it was changed), its initial value and its meaning.';
