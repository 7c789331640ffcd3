"""Acts: clocks, threads and requests. The only folder that imports time, threading, random, asyncio or botocore."""
