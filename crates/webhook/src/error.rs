use hutch_serve::error_text;

/// Problems that an error names; further ones are only counted.
const PROBLEMS_SHOWN: usize = 50;

/// Why the webhook cannot do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting cannot be taken.
    #[error("{flag}: {problem}")]
    Setting {
        /// The flag that sets it.
        flag: &'static str,
        /// The problem and the correction.
        problem: String,
    },
    /// The API server refused, or cannot be reached.
    #[error("{doing}: {}{}", error_text(source), hint(source))]
    Api {
        /// The action that was tried, with the object's name.
        doing: String,
        /// Error of the client.
        source: kube::Error,
    },
    /// Others changed the Secret or the definitions each time between a read and a write.
    #[error("Secret and definitions were changed by others {0} times in a row while they were being written")]
    Contended(usize),
    /// A certificate could not be made.
    #[error("cannot make the webhook's certificate: {0}")]
    Issue(String),
    /// A certificate file that the operator provides cannot be used.
    #[error("{0}")]
    Files(String),
    /// The cluster is not in the state that a migration begins with.
    #[error("{0}")]
    Unready(String),
    /// Some objects cannot be migrated until a user has changed them.
    #[error("{}", listed(.0))]
    Problems(Vec<String>),
    /// The port, a file or a certificate cannot be used.
    #[error(transparent)]
    Serve(#[from] hutch_serve::Error),
}

impl Error {
    /// Wraps an error of the client.
    pub(crate) fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        let doing = doing.into();
        move |source| Error::Api { doing, source }
    }

    /// Returns true if a retry may well succeed: no response, an overloaded or failing server.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Error::Api { source: kube::Error::Api(status), .. } => status.code >= 500 || status.code == 429,
            Error::Api { source, .. } => !matches!(source, kube::Error::SerdeError(_)),
            Error::Contended(_) => true,
            _ => false,
        }
    }
}

fn listed(problems: &[String]) -> String {
    let mut text = match problems.len() {
        1 => "1 problem:".to_owned(),
        count => format!("{count} problems:"),
    };
    for problem in problems.iter().take(PROBLEMS_SHOWN) {
        text.push_str("\n  ");
        text.push_str(problem);
    }
    if problems.len() > PROBLEMS_SHOWN {
        text.push_str(&format!("\n  and {} more", problems.len() - PROBLEMS_SHOWN));
    }
    text
}

fn hint(source: &kube::Error) -> &'static str {
    match source {
        kube::Error::Api(status) if status.is_forbidden() => {
            "; the role of this ServiceAccount must allow it, deploy/README.md lists what is needed"
        }
        _ => "",
    }
}
