"""Verification of the fast engine against the reference: what is compared, and the verdict."""

from tokend_server.engine.verification.report import Report, render_report, verdict_key, verdict_of, verify

__all__ = ["Report", "render_report", "verdict_key", "verdict_of", "verify"]
