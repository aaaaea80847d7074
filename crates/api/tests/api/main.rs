//! The types and their conversion against the published CRDs.

mod conversion;
mod drift;
