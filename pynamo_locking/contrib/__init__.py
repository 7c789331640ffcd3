"""Thin connections to other frameworks: Flask, Django, Starlette and FastAPI."""
