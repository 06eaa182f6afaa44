-- A worker that is busy need not hear of every job, only of those that go before what it has at hand.
alter table holdfast.worker add column above smallint;
comment on column holdfast.worker.above is 'It wants to be notified of jobs of a higher priority than this alone; null for all.';

-- Room for the second entry that each job gets when it is claimed: else a page that is full of first ones is
-- searched for entries that could go, and then split.
alter index holdfast.job_pkey set (fillfactor = 50);
