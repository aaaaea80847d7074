//! The selectors of a request.

use hutch_store::Entry;

use crate::call::Call;
use crate::convert;
use crate::failure::Failure;
use crate::kinds::Kind;
use crate::object::Object;
use crate::selector::{FieldSelector, LabelSelector};

/// Filter of the objects of a list or a watch.
pub(crate) struct Filter {
    kind: Kind,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Filter {
    pub(crate) fn of(call: &Call) -> Result<Filter, Failure> {
        let bad = |error: crate::selector::SelectorError| Failure::bad_request(error.to_string());
        let text = |name: &str| call.query.get(name).unwrap_or_default();
        let labels = LabelSelector::parse(text("labelSelector")).map_err(bad)?;
        let mut fields = FieldSelector::parse(text("fieldSelector"), call.kind()).map_err(bad)?;
        if !call.name.is_empty() {
            // The old form of a watch of one object.
            let one = format!("metadata.name={}", call.name);
            fields = FieldSelector::parse(&one, call.kind()).map_err(bad)?;
        }
        let kind = Kind { schema: None, columns: Vec::new(), ..call.kind().clone() };
        Ok(Filter { kind, labels, fields })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one name that can match, if there is one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.name()
    }

    /// Returns true if a stored object matches. Decodes it only for selectors of fields other than the name.
    pub(crate) fn matches(&self, entry: &Entry<Object>) -> bool {
        if !self.labels.is_empty() && !self.labels.matches(entry.value.labels()) {
            return false;
        }
        if self.fields.is_empty() {
            return true;
        }
        if let Some(name) = self.fields.name() {
            let own = entry.name.rsplit('/').next().unwrap_or_default();
            if own != name {
                return false;
            }
        }
        convert::from_storage(&self.kind, entry.value.value())
            .is_ok_and(|object| self.fields.matches(&object))
    }
}
