"""Tables of the deployment file, one topic a file. Each field says what it means; config.py reads and checks them."""
