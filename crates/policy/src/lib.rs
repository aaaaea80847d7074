//! Decides which destinations a sandbox may reach. Pure: no I/O, no clock.
//!
//! A *level* is everything that one authority says about a sandbox: the cluster, its namespace, its template, its claim,
//! or the caller of `hutch run`. Each level decides for itself, and the strictest verdict counts. Rules of different
//! levels are never merged into one list, so a level can only take away what the others allow. A level without egress
//! rules abstains. If all levels abstain, nothing is reachable. A claim can only take away: its level alone opens nothing.

mod address;
mod attach;
#[cfg(test)]
mod bounds;
mod budget;
mod cidr;
mod conflict;
mod credential;
mod decide;
#[cfg(test)]
mod defaults;
mod destination;
mod egress;
mod expression;
mod files;
mod given;
mod host;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod http;
mod json;
mod list;
mod network;
mod object;
mod pattern;
mod peer;
mod placeholder;
mod ports;
mod provider;
mod request;
mod rule;
mod scanner;
mod stored;
mod time;
mod unmet;
mod usable;

pub use address::{Forbidden, check_address, is_never_dialed, judged_as, opens_nothing};
pub use attach::{AppliesTo, Operator, Requirement, SandboxTarget, Selector, Subject, policy_names};
pub use budget::{Budget, Bytes, InvalidAmount, Time};
pub use cidr::{Cidr, InvalidCidr};
pub use conflict::conflicts;
pub use credential::{Aws, Binding, Credential, PLACE, Shape, Source};
pub use decide::{
    Authority, Level, Mode, Opinion, RequestVerdict, Verdict, blind_observers, closes_addresses, decide,
    decide_request, denies_calls, has_conditions, judges_requests, may_dial, may_resolve, opens, reads_calls,
    scanners, wildcard,
};
pub use destination::{Decision, Destination, InvalidDestination};
pub use egress::Egress;
pub use expression::{Expression, Facts, Identity, InvalidExpression, Moment, Session, UnknownField};
pub use files::{
    Access, FilePath, FileRule, InvalidPath, Restrictions, access_at, combined, looser, restrictions,
};
pub use given::{check_conditions, check_given};
pub use host::{Host, HostName, InvalidHost};
pub use http::{
    Body, Glob, HttpRule, InvalidRequestRule, McpRule, Method, PathPattern, Pattern, ValueMatch, decide_calls,
};
pub use list::RuleList;
pub use network::NetworkLevel;
pub use object::{InvalidPolicy, Kind, POLICY_BYTES, PolicyObject, closed_ranges, useless_requests};
pub use pattern::{HostPattern, InvalidPattern};
pub use peer::{Closed, Peer, decide_peer, may_reach, names_sandboxes, open_ports, would_refuse};
pub use placeholder::{derived_placeholder, placeholder};
pub use ports::{InvalidPorts, PortRange};
pub use provider::{Provider, ProviderObject, ProviderSource, SecretKey, TokenSource, VaultSource};
pub use request::{AmbiguousPath, Call, Path, Request, is_same_header};
pub use rule::{EgressRule, Protocol, Tls, Traffic};
pub use scanner::{Door, Exception, InvalidValueHash, ScanAction, ScanRules, ScannerRules, ValueHash};
pub use stored::{
    Applying, FieldOfServer, LEVELS, NOT_ENFORCEABLE, NotEnforceable, PARTLY_ENFORCED, Policies, PolicyFiles,
    PolicyKey, StoredPolicy, applying, fields_of_server, file_rules, scanning,
};
pub use unmet::{ConditionState, Unmet};
pub use usable::{is_opened, may_use, offered, unambiguous};
