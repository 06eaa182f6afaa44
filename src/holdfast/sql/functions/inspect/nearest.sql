-- Find the name that was probably meant.
--
-- The pairs of letters that both have are compared (Dice's coefficient). This needs only SQL, and
-- finds swapped, missing and doubled letters.
create or replace function holdfast.nearest(word text, candidates text[])
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  with given as (
    select distinct substr('^' || lower(word) || '$', n, 2) as pair
      from generate_series(1, least(length(word), 100) + 1) n
  ),
  compared as (
    select c.word, (
      select 2.0 * count(g.pair) / (count(*) + (select count(*) from given))
      from (
        select distinct substr('^' || c.word || '$', n, 2) as pair
        from generate_series(1, length(c.word) + 1) n) p
      left join given g on g.pair = p.pair
    ) as likeness
    from unnest(candidates) c (word)
  )
  select c.word from compared c where c.likeness >= 0.4 order by c.likeness desc, c.word limit 1
$$;
comment on function holdfast.nearest(text, text[]) is
  'Return the candidate that was probably meant, if one is close.';
