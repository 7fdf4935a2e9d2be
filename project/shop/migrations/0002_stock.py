"""Fill the shelves, so that a fresh shop has something to sell."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

STOCK = [
    ("feather", "Feather on a string", "Ninety-nine lives of its own. The string is extra, and included.", "3.50"),
    ("yarn", "Ball of yarn", "Forty metres of purpose, wound by hand and soon unwound.", "4.20"),
    ("fish", "Tin of sardines", "In oil, from the Atlantic. Opens with the sound that wakes the house.", "5.80"),
    ("box", "Cardboard box", "One size: slightly too small. Ships inside a larger, better box.", "7.00"),
    ("mouse", "Clockwork mouse", "Three hours to the winding. Escapes under any sofa.", "12.90"),
    ("cushion", "Window cushion", "Wool felt for the sunny side. Keeps the warmth of the one who left.", "34.00"),
]


def fill_shelves(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    product = apps.get_model("shop", "Product")
    product.objects.bulk_create(
        [
            product(slug=slug, name=name, description=description, price=price)
            for slug, name, description, price in STOCK
        ]
    )


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]

    operations = [migrations.RunPython(fill_shelves, migrations.RunPython.noop)]
