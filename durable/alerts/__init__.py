"""Alerts: functions, mails and webhooks report that something needs a person, and when it is over.

`DURABLE["ALERTS"]` switches them on (`durable.alerts.settings`). The process of the sweep checks about every half
minute (`watch`). A condition that begins or ends changes its row in the transaction that starts a run for each target
(`delivery`). So one of any number of processes sends an alert, and a crash neither loses nor repeats it.
"""

from durable.alerts.alert import Alert
from durable.alerts.settings import AlertSettings, AlertSettingsError, Target

__all__ = ["Alert", "AlertSettings", "AlertSettingsError", "Target"]
