"""A shop with Django: orders in SQL, stock in DynamoDB.

    POST /orders             {"product": "book", "quantity": 2}: 201; 409 if there are not enough
    GET  /products/<id>      what is left, with an ETag; 304 if the client has it
    PUT  /products/<id>      {"received": 100}: needs If-Match; 428 without it, 412 if it is stale
    GET  /health             200 if the tables answer

The stock counts what was received and what was sold; the orders say who bought it. An order is written while the lock
of its product is held, and the lock is given back only when SQL has committed or rolled back. So nothing is sold twice.
Two databases cannot commit at one moment: a process that dies after the stock is written and before SQL commits leaves
less in the stock than there is, never more. `manage.py reconcile` counts again.

Try it, with a DynamoDB that your environment points to:

    cd docs/examples/django_shop
    python manage.py migrate --run-syncdb
    python manage.py dynamodb_tables create
    python manage.py shell -c "from shop.stock import Stock; Stock('book', received=5).save()"
    python manage.py runserver
    python manage.py locks list
"""
