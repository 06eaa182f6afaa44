"""One typed value per SQL function: the only mirror of `sql/functions/`.

A call says what to ask and how to read the answer; it touches no database. The runners in `database/`
carry it, sync or async, on a connection of ours or of the caller's, so nothing is written twice.
A test holds every signature here against `pg_proc`.
"""

from holdfast.calls import retention as retention
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
from holdfast.calls.diagnosis import Finding as Finding, doctor as doctor
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
from holdfast.calls.producing import Place as Place, enqueue_many as enqueue_many, places as places
from holdfast.calls.workers import (
    advance as advance,
    cancels as cancels,
    channel as channel,
    disown as disown,
    fire as fire,
    fold_stats as fold_stats,
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
