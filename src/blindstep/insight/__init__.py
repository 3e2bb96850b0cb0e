"""What people look at: tables, reports, certificates and the demonstration."""

from blindstep.drivers.result import register
from blindstep.insight.certificate import certificate as make_certificate
from blindstep.insight.report import report as write_report

register("certificate", make_certificate)
register("report", write_report)
