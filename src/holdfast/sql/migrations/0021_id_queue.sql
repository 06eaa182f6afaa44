-- In whose queue an id was used: a tenant must not be told of, or be given, the job of another.
-- Null for ids that were noted before; those are forgotten within seven days.
alter table holdfast.used_id add column queue text collate "C";
