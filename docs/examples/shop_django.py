"""Orders with Django, in one file. `python shop_django.py runserver` serves it."""

import json
import os
import sys
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from db import outbox

_url = urlsplit(os.environ["SHOP_DATABASE_URL"])
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ["SHOP_SECRET"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": _url.hostname,
            "PORT": _url.port,
            "NAME": _url.path[1:],
            "USER": _url.username,
            "PASSWORD": unquote(_url.password or ""),
        }
    },
)
django.setup()


class Order(models.Model):
    """One order."""

    id = models.BigAutoField(primary_key=True)
    item = models.TextField()

    class Meta:
        """Its table is in a schema of the shop's own."""

        app_label = "shop"
        db_table = 'shop"."orders'

    def __str__(self) -> str:
        return self.item


class SoldOut(Exception):
    """There is no such thing any more."""


@transaction.atomic
def place(item: str) -> Order:
    """Take an order: the order and the message that asks for its receipt are one commit."""
    new = Order.objects.create(item=item)
    # psycopg's connection, in this transaction
    outbox.append(connection.connection, "send_receipt", [new.pk], lane="shop", queue="receipts")
    if item == "moon":
        raise SoldOut(item)  # neither the order nor the message
    return new


@csrf_exempt  # a JSON API without cookies
@require_POST
def order(request: HttpRequest) -> JsonResponse:
    """Answer 201 once the order is committed."""
    try:
        new = place(json.loads(request.body)["item"])
    except SoldOut:
        return JsonResponse({"detail": "sold out"}, status=409)
    return JsonResponse({"order": new.pk}, status=201)


urlpatterns = [path("orders", order)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
