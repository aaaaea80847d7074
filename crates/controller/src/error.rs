use hutch_serve::error_text;

/// Failures of requests to the API server. None of them ends [`crate::run`]: each request is retried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An object could not be created.
    #[error("creating {kind} {name:?}: {}", error_text(source))]
    Create {
        /// Kind of the object.
        kind: String,
        /// Name of the object, or its prefix.
        name: String,
        /// Error of the client.
        source: kube::Error,
    },
    /// An object could not be changed.
    #[error("changing {kind} {name:?}: {}", error_text(source))]
    Change {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Error of the client.
        source: kube::Error,
    },
    /// Objects could not be listed.
    #[error("listing {kind} of namespace {namespace:?}: {}", error_text(source))]
    List {
        /// Kind of the objects.
        kind: String,
        /// Their namespace.
        namespace: String,
        /// Error of the client.
        source: kube::Error,
    },
    /// An object could not be deleted.
    #[error("deleting {kind} {name:?}: {}", error_text(source))]
    Delete {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Error of the client.
        source: kube::Error,
    },
    /// Several failures at once.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<Error>),
}

impl Error {
    /// Returns the text for a condition's message: the server's message if there is one, else the whole error.
    pub(crate) fn for_condition(&self) -> String {
        match (self, self.status()) {
            (Error::Several(errors), _) => {
                errors.iter().map(Error::for_condition).collect::<Vec<_>>().join("\n")
            }
            (_, Some(status)) if !status.message.is_empty() => status.message.clone(),
            _ => self.to_string(),
        }
    }

    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Error::Create { source, .. }
            | Error::Change { source, .. }
            | Error::List { source, .. }
            | Error::Delete { source, .. } => match source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Error::Several(_) => None,
        }
    }

    /// Returns nothing for an object that did not exist.
    pub(crate) fn unless_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Err(error) if error.is_not_found() => Ok(None),
            result => result.map(Some),
        }
    }

    /// Returns whether the object did not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.is_not_found())
    }

    /// Returns whether another client has changed the object.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.is_conflict())
    }

    /// Returns whether an object of that name already exists.
    pub(crate) fn is_already_exists(&self) -> bool {
        self.status().is_some_and(|status| status.is_already_exists())
    }

    /// Returns whether the server rejected the object as invalid.
    pub(crate) fn is_invalid(&self) -> bool {
        self.status().is_some_and(|status| status.code == 422)
    }

    /// Returns whether the server refused the request; otherwise it may have succeeded.
    pub(crate) fn is_refusal(&self) -> bool {
        self.status().is_some_and(|status| (400..500).contains(&status.code))
    }

    /// Returns whether the response also settles an earlier, unanswered request for the same: the object exists, is gone, or
    /// has another version. A server that is overloaded or forbids the request does not answer that.
    pub(crate) fn settles_earlier(&self) -> bool {
        self.is_already_exists() || self.is_not_found() || self.is_conflict()
    }

    /// Joins all errors into one; an empty list is success.
    pub(crate) fn joined(mut errors: Vec<Error>) -> Result<(), Error> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(source: kube::Error) -> Error {
        Error::Create { kind: "Pod".into(), name: "s".into(), source }
    }

    #[test]
    fn condition_has_the_message_of_the_server() {
        let status = kube::core::Status { message: "no such thing".into(), code: 422, ..Default::default() };
        let refused = create(kube::Error::Api(Box::new(status)));
        assert_eq!(refused.for_condition(), "no such thing");
        assert_eq!(refused.to_string(), "creating Pod \"s\": no such thing");
        let lost = create(kube::Error::Service("the connection broke".into()));
        assert!(lost.for_condition().starts_with("creating Pod \"s\": "), "{}", lost.for_condition());
        assert_eq!(Error::Several(vec![refused, lost]).for_condition().lines().next(), Some("no such thing"));
    }
}
