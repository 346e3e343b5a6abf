"""The script of a user in the pages."""


def main(client, n=1000):
    """Sum numbers on the workers."""
    return client.submit(sum, client.map(int, range(n)))
