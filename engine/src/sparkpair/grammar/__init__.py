# SPDX-License-Identifier: Apache-2.0
"""Answers with a form: JSON by a schema, a regular expression, a grammar, a choice; compiled by xgrammar.

form.py says what is asked for; schema.py reads JSON schemas and knows what is enforced; forms.py compiles and matches;
nursery.py tries untrusted forms in processes that may die of them; library.py is what the API asks.
"""
