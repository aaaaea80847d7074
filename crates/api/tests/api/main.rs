//! The types and their conversion against the published definitions.

mod conversion;
mod drift;
