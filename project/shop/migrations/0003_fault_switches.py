"""One fault switch for each service, off, so that an operator only has to turn it."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

SERVICES = ["bank", "carrier", "post", "pictures"]


def install_switches(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    fault = apps.get_model("shop", "Fault")
    for service in SERVICES:
        fault.objects.get_or_create(service=service, defaults={"is_on": False})


class Migration(migrations.Migration):
    dependencies = [("shop", "0002_stock")]

    operations = [
        migrations.AlterModelOptions(
            name="fault",
            options={"ordering": ["service"], "verbose_name": "fault switch", "verbose_name_plural": "fault switches"},
        ),
        migrations.AlterField(
            model_name="fault", name="is_on", field=models.BooleanField(default=False, verbose_name="on")
        ),
        migrations.RunPython(install_switches, migrations.RunPython.noop),
    ]
