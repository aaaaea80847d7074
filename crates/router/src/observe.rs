//! Observation: access log, metrics and traces of requests.

pub(crate) mod audit;
pub(crate) mod journal;
pub(crate) mod metrics;
pub(crate) mod trace;
