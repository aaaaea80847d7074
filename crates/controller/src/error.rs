/// What can go wrong between the controllers and the API server. Nothing of it ends [`crate::run`]: each is tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An object could not be created.
    #[error("creating {kind} {name:?}: {source}")]
    Create {
        /// Kind of the object.
        kind: String,
        /// Its name, or the start of it.
        name: String,
        /// What the client said.
        source: kube::Error,
    },
    /// An object could not be changed.
    #[error("changing {kind} {name:?}: {source}")]
    Change {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// What the client said.
        source: kube::Error,
    },
    /// An object could not be deleted.
    #[error("deleting {kind} {name:?}: {source}")]
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
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.is_not_found())
    }

    /// Whether somebody else changed the object meanwhile.
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.is_conflict())
    }

    /// Whether an object of that name is there already.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(|status| status.is_already_exists())
    }

    /// Whether the server has said that it did not do it; without that it may have.
    pub(crate) fn is_refusal(&self) -> bool {
        self.status().is_some_and(|status| (400..500).contains(&status.code))
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
