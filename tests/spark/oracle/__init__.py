"""The oracle: generated tables, shapes and transactions; every shape must equal the query it stands for."""
