use hutch_serve::said;

/// What can go wrong between the controllers and the API server. Nothing of it ends [`crate::run`]: each is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An object could not be created.
    #[error("creating {kind} {name:?}: {}", said(source))]
    Create {
        /// Kind of the object.
        kind: String,
        /// Its name, or the start of it.
        name: String,
        /// What the client said.
        source: kube::Error,
    },
    /// An object could not be changed.
    #[error("changing {kind} {name:?}: {}", said(source))]
    Change {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// What the client said.
        source: kube::Error,
    },
    /// An object could not be deleted.
    #[error("deleting {kind} {name:?}: {}", said(source))]
    Delete {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// What the client said.
        source: kube::Error,
    },
    /// Several at once.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<Error>),
}

impl Error {
    /// For a condition's message: what the server said and nothing else, or the whole where it said nothing.
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
            Error::Create { source, .. } | Error::Change { source, .. } | Error::Delete { source, .. } => {
                match source {
                    kube::Error::Api(status) => Some(status),
                    _ => None,
                }
            }
            Error::Several(_) => None,
        }
    }

    /// Whether the object was not there.
    pub(crate) fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.is_not_found())
    }

    /// Whether somebody else changed the object meanwhile.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.is_conflict())
    }

    /// Whether an object of that name is there already.
    pub(crate) fn is_already_exists(&self) -> bool {
        self.status().is_some_and(|status| status.is_already_exists())
    }

    /// Whether the server takes no such object.
    pub(crate) fn is_invalid(&self) -> bool {
        self.status().is_some_and(|status| status.code == 422)
    }

    /// Whether the server has said that it did not do it; without that it may have.
    pub(crate) fn is_refusal(&self) -> bool {
        self.status().is_some_and(|status| (400..500).contains(&status.code))
    }

    /// Whether the answer also settles an earlier request for the same that was not answered: the object is there, is gone,
    /// or is another version. A server that has too much to do, or forbids it by now, says nothing about that.
    pub(crate) fn settles_earlier(&self) -> bool {
        self.is_already_exists() || self.is_not_found() || self.is_conflict()
    }

    /// All of them as one, nothing when there are none.
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
    fn a_condition_has_the_servers_words() {
        let status = kube::core::Status { message: "no such thing".into(), code: 422, ..Default::default() };
        let refused = create(kube::Error::Api(Box::new(status)));
        assert_eq!(refused.for_condition(), "no such thing");
        assert_eq!(refused.to_string(), "creating Pod \"s\": no such thing");
        let lost = create(kube::Error::Service("the connection broke".into()));
        assert!(lost.for_condition().starts_with("creating Pod \"s\": "), "{}", lost.for_condition());
        assert_eq!(Error::Several(vec![refused, lost]).for_condition().lines().next(), Some("no such thing"));
    }
}
