"""One typed value per SQL function: the only mirror of `sql/functions/`.

A call says what to ask and how to read the answer; it touches no database. The runners in `database/`
carry it, sync or async, on a connection of ours or of the caller's, so nothing is written twice.
A test holds every signature here against `pg_proc`.
"""

from holdfast.calls import (
    access as access,
    retention as retention,
    settings as settings,
    statistics as statistics,
)
from holdfast.calls.base import (
    FUNCTIONS as FUNCTIONS,
    Call as Call,
    Function as Function,
    Row as Row,
    Rows as Rows,
)
from holdfast.calls.claiming import (
    LOCKED as LOCKED,
    Claimed as Claimed,
    Refusal as Refusal,
    Report as Report,
    claim as claim,
    claimed as claimed,
    complete as complete,
    finish as finish,
)
from holdfast.calls.counting import (
    QueueRow as QueueRow,
    Stat as Stat,
    WorkerRow as WorkerRow,
    list_queues as list_queues,
    list_workers as list_workers,
    stats as stats,
)
from holdfast.calls.dead import (
    Dead as Dead,
    list_dead as list_dead,
    purge as purge,
    purge_many as purge_many,
    replay as replay,
    replay_many as replay_many,
)
from holdfast.calls.diagnosis import (
    Finding as Finding,
    Reason as Reason,
    doctor as doctor,
    why as why,
)
from holdfast.calls.gauges import (
    Gauge as Gauge,
    clock as clock,
    gauges as gauges,
)
from holdfast.calls.inside import (
    Memory as Memory,
    Progress as Progress,
    Published as Published,
    Unwritten as Unwritten,
    keep_step as keep_step,
    memory as memory,
    not_held as not_held,
    progress_many as progress_many,
    publish_many as publish_many,
    start as start,
    start_one as start_one,
)
from holdfast.calls.looking import (
    AttemptError as AttemptError,
    Event as Event,
    StepRow as StepRow,
    event_cursor as event_cursor,
    job as job,
    job_checkpoint as job_checkpoint,
    job_errors as job_errors,
    job_steps as job_steps,
    list_jobs as list_jobs,
    read_events as read_events,
)
from holdfast.calls.operating import (
    Cancelled as Cancelled,
    cancel as cancel,
    cancel_many as cancel_many,
    cancel_matching as cancel_matching,
    give_up as give_up,
    pause as pause,
    reschedule as reschedule,
    resume as resume,
    run_now as run_now,
)
from holdfast.calls.policies import (
    PolicyRow as PolicyRow,
    list_retry_policies as list_retry_policies,
    reset_retry_policy as reset_retry_policy,
    retry_delay as retry_delay,
    set_retry_policy as set_retry_policy,
)
from holdfast.calls.producing import (
    Place as Place,
    enqueue as enqueue,
    enqueue_many as enqueue_many,
    places as places,
)
from holdfast.calls.schedules import (
    ScheduleRow as ScheduleRow,
    add_schedule as add_schedule,
    change_schedule as change_schedule,
    cron_in_words as cron_in_words,
    list_schedules as list_schedules,
    next_occurrence as next_occurrence,
    pause_schedule as pause_schedule,
    remove_schedule as remove_schedule,
    resume_schedule as resume_schedule,
    run_schedule as run_schedule,
    upcoming as upcoming,
)
from holdfast.calls.waiting import (
    End as End,
    await_jobs as await_jobs,
    await_no_more as await_no_more,
    ends as ends,
)
from holdfast.calls.workers import (
    advance as advance,
    cancels as cancels,
    channel as channel,
    disown as disown,
    heartbeat as heartbeat,
    leave as leave,
    promote as promote,
    recover as recover,
    register as register,
    report_duty as report_duty,
    sleep as sleep,
    tick as tick,
    upkeep as upkeep,
)
