"""Files of requests without a server: `mrp-serve batch`, and `BatchModel` for Python and Ray Data."""
