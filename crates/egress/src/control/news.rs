//! News of the process that serves sandboxes.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use hutch_policy::HostName;
use serde::{Deserialize, Serialize};

use crate::ends::Ended;
use crate::record::Decided;
use crate::refusal::Refusal;

/// News of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// A name has got the next synthetic address.
    Named {
        /// Number of the sandbox.
        sandbox: u64,
        /// Name.
        name: HostName,
    },
    /// A name has got an address, for an audit log. Only after [`super::Order::Record`].
    Resolved {
        /// Number of the sandbox.
        sandbox: u64,
        /// Name.
        name: HostName,
        /// As in [`News::Decided`].
        wait: Option<u64>,
    },
    /// A sandbox connects to another one. [`super::Order::Dialed`] is the answer.
    Dial {
        /// Number of the sandbox.
        sandbox: u64,
        /// Number of the request.
        dial: u64,
        /// Namespace of the Service.
        namespace: String,
        /// Name of the Service.
        service: String,
        /// Port of the Service.
        port: NonZeroU16,
        /// Make the connection. Otherwise only say whether it is allowed.
        connects: bool,
    },
    /// Something was decided. Only after [`super::Order::Record`].
    Decided {
        /// Number of the sandbox.
        sandbox: u64,
        /// Decision.
        decided: Decided,
        /// Number of the record, if it waits until that is written. [`super::Order::Recorded`] is the answer.
        wait: Option<u64>,
    },
    /// The value of a credential is sent. Only after [`super::Order::Record`].
    Used {
        /// Number of the sandbox.
        sandbox: u64,
        /// Name of the credential.
        credential: String,
        /// Host and port that receive it.
        destination: String,
        /// As in [`News::Decided`].
        wait: Option<u64>,
    },
    /// Connections have ended whose bytes were only passed on. Only after [`super::Order::Record`].
    Ended {
        /// Number of the sandbox.
        sandbox: u64,
        /// The connections.
        ended: Ended,
    },
    /// Decisions were lost: too many waited to be sent.
    Lost {
        /// Number of them.
        count: u64,
    },
    /// A client of a gateway has no sandbox: no Pod has its address, or the token is another one.
    Unidentified {
        /// Address of the client.
        address: IpAddr,
    },
    /// A sandbox was to be served while too many others waited for descriptors, and can be now. Repeat its
    /// [`super::Order::Serve`].
    Unserved {
        /// Number of the sandbox.
        sandbox: u64,
    },
    /// A connection was refused, or would have been.
    Refused {
        /// Number of the sandbox.
        sandbox: u64,
        /// Refusal.
        refusal: Refusal,
    },
}

/// Receives news.
pub type Reporter = Arc<dyn Fn(News) + Send + Sync>;
