-- Old ticks are found by their time when they are forgotten.
create index schedule_tick_time on holdfast.schedule_tick using brin (tick);
