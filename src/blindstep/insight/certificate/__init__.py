"""Goldstein certificates: the stationarity that the theorems promise, measured at a point."""

from blindstep.insight.certificate.certify import Certificate, certificate

__all__ = ["Certificate", "certificate"]
