//! Annotations of policies and webhooks for the audit record of a request.

use std::sync::{Mutex, PoisonError};

/// Maximum annotations of a request, values of each, and characters of a value. The record bounds them further.
const KEYS: usize = 32;
const VALUES: usize = 8;
const VALUE: usize = 2 << 10;

/// Keys, each with its values.
#[derive(Debug, Default)]
pub(crate) struct Annotations(Mutex<Vec<(String, Vec<String>)>>);

impl Annotations {
    /// Adds a value. The same one counts once: a request may be tried several times, and may concern several objects.
    pub(crate) fn add(&self, owner: &str, key: &str, value: &str) {
        let key = format!("{owner}/{key}");
        let value: String = value.trim().chars().take(VALUE).collect();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, values)) = all.iter_mut().find(|(own, _)| *own == key) {
            if values.len() < VALUES && !values.contains(&value) {
                values.push(value);
            }
        } else if all.len() < KEYS {
            all.push((key, vec![value]));
        }
    }

    /// Takes all of them. Values of one key are joined as in Kubernetes.
    pub(crate) fn take(&self) -> Vec<(String, String)> {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().map(|(key, values)| (key, values.join(", "))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_bounded_and_each_value_counts_once() {
        let annotations = Annotations::default();
        for value in ["a", "b", " a "] {
            annotations.add("p", "k", value);
        }
        for number in 0..100 {
            annotations.add("p", &number.to_string(), &"x".repeat(VALUE + 1));
            annotations.add("p", "0", &number.to_string());
        }
        let all = annotations.take();
        assert_eq!(all[0], ("p/k".to_owned(), "a, b".to_owned()));
        assert_eq!((all.len(), all[2].1.len()), (KEYS, VALUE));
        assert_eq!(all[1].1.split(", ").count(), VALUES);
        assert_eq!(annotations.take(), []);
    }
}
