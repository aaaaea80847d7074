//! Label selectors and field selectors.

mod fields;
mod labels;

pub(crate) use fields::FieldSelector;
pub(crate) use labels::LabelSelector;

/// Longest selector that is read, in bytes.
pub(crate) const MAX_LENGTH: usize = 64 * 1024;

/// Error in a selector: the text of a 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectorError {
    /// The text is no selector.
    #[error("unable to parse requirement: {0}")]
    Labels(String),
    /// The text is no field selector.
    #[error("invalid field selector: {0}")]
    Fields(String),
    /// The kind cannot be selected by that field.
    #[error("field label not supported: {0}")]
    Unsupported(String),
}
