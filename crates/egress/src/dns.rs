//! Answers of the DNS server of a sandbox.
//!
//! No other server receives a query, so a query carries nothing out. A name that some rule allows has a synthetic address;
//! every other name does not exist.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hutch_policy::HostName;

use crate::names::{Allowed, Names};

/// Maximum bytes of a query, over TCP too.
pub(crate) const QUERY: usize = 4096;

/// Seconds for which a client keeps an answer.
const TTL: u32 = 60;
/// Bytes of the header of a message.
const HEADER: usize = 12;

/// Returns the answer to a message of a client, if it gets one. `allows` says how a name is allowed, if it is.
pub fn answer(
    message: &[u8],
    names: &mut Names,
    allows: impl Fn(&HostName) -> Option<Allowed>,
) -> Option<Vec<u8>> {
    let id = u16::from_be_bytes(*message.first_chunk()?);
    if message.len() < HEADER {
        return None;
    }
    let answer = match Message::from_vec(message) {
        // Answering an answer could continue forever.
        Ok(query) if query.metadata.message_type != MessageType::Query => return None,
        Ok(query) => reply(&query, names, allows),
        Err(_) => Message::error_msg(id, OpCode::Query, ResponseCode::Refused),
    };
    answer.to_vec().ok()
}

/// Returns the answer to a query that cannot be answered now.
pub fn failure(message: &[u8]) -> Option<Vec<u8>> {
    let mut answer = reply_to(&Message::from_vec(message).ok()?);
    answer.metadata.response_code = ResponseCode::ServFail;
    answer.to_vec().ok()
}

/// Returns true if an answer has an address or a name.
pub fn has_data(answer: &[u8]) -> bool {
    // The number of its records.
    answer.get(6..8).is_some_and(|count| count != [0, 0])
}

fn reply_to(query: &Message) -> Message {
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.queries.clone_from(&query.queries);
    reply.edns = query.edns.as_ref().map(|_| Edns::new());
    reply
}

fn reply(query: &Message, names: &mut Names, allows: impl Fn(&HostName) -> Option<Allowed>) -> Message {
    let mut reply = reply_to(query);
    let (code, data) = match query.queries.as_slice() {
        [question] if query.metadata.op_code == OpCode::Query => look_up(question, names, allows),
        _ => (ResponseCode::Refused, None),
    };
    reply.metadata.response_code = code;
    if let (Some(data), [question]) = (data, query.queries.as_slice()) {
        reply.add_answer(Record::from_rdata(question.name().clone(), TTL, data));
    }
    reply
}

fn look_up(
    question: &Query,
    names: &mut Names,
    allows: impl Fn(&HostName) -> Option<Allowed>,
) -> (ResponseCode, Option<RData>) {
    if question.query_class() != DNSClass::IN {
        return (ResponseCode::Refused, None);
    }
    let missing = (ResponseCode::NXDomain, None);
    if question.query_type() == RecordType::PTR {
        let name = reverse(question.name()).and_then(|address| names.name_of(address));
        let name = name.and_then(|name| Name::from_ascii(format!("{name}.")).ok());
        return name.map_or(missing, |name| (ResponseCode::NoError, Some(RData::PTR(PTR(name)))));
    }
    let Ok(name) = question.name().to_ascii().parse::<HostName>() else { return missing };
    let Some(allowed) = allows(&name) else { return missing };
    if question.query_type() != RecordType::A {
        // The name exists and has no such record.
        return (ResponseCode::NoError, None);
    }
    match names.address_of(&name, &allowed) {
        Some(address) => (ResponseCode::NoError, Some(RData::A(A(address)))),
        None => (ResponseCode::ServFail, None),
    }
}

/// Returns the IPv4 address of a name below `in-addr.arpa`.
fn reverse(name: &Name) -> Option<std::net::Ipv4Addr> {
    match name.parse_arpa_name().ok()?.addr() {
        std::net::IpAddr::V4(address) => Some(address),
        std::net::IpAddr::V6(_) => None,
    }
}

/// Answers any message. It neither panics nor gives an address for a name that is not allowed.
#[cfg(any(test, feature = "fuzzing"))]
pub fn any_message(bytes: &[u8]) {
    let mut names = Names::default();
    let none = answer(bytes, &mut names, |_| None);
    if let Some(none) = none {
        let read = Message::from_vec(&none).expect("an answer is a message");
        assert!(read.answers.is_empty() && read.metadata.message_type == MessageType::Response);
    }
    let _ = answer(bytes, &mut names, |_| Some(Allowed::Exactly));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(names: &mut Names, name: &str, kind: RecordType) -> Message {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let allows = |name: &HostName| (name.as_str() == "a.example").then_some(Allowed::Exactly);
        let bytes = answer(&message.to_vec().unwrap(), names, allows).unwrap();
        let answer = Message::from_vec(&bytes).unwrap();
        assert_eq!(answer.metadata.id, message.metadata.id);
        answer
    }

    #[test]
    fn allowed_name_has_one_synthetic_address_and_nothing_else() {
        let mut names = Names::default();
        let found = ask(&mut names, "A.example.", RecordType::A);
        let [record] = found.answers.as_slice() else { panic!("{found:?}") };
        assert_eq!((record.ttl, &record.data), (60, &RData::A(A("198.18.1.0".parse().unwrap()))));
        for kind in ["AAAA", "TXT", "MX", "CNAME", "SRV", "HTTPS", "ANY", "NULL", "NS", "SOA"] {
            let answer = ask(&mut names, "a.example.", kind.parse().unwrap());
            let code = answer.metadata.response_code;
            assert_eq!((code, answer.answers.len()), (ResponseCode::NoError, 0), "{kind}");
            assert!(answer.authorities.is_empty(), "no record by which a client keeps a negative answer");
        }
        let back = ask(&mut names, "0.1.18.198.in-addr.arpa.", RecordType::PTR);
        assert_eq!(back.answers[0].data.to_string(), "a.example.");
    }

    #[test]
    fn failure_has_the_question_and_no_address() {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii("a.example.").unwrap(), RecordType::A));
        let message = message.to_vec().unwrap();
        let answer = answer(&message, &mut Names::default(), |_| Some(Allowed::Exactly)).unwrap();
        let failed = failure(&message).unwrap();
        assert!(has_data(&answer) && !has_data(&failed));
        let (asked, failed) = (Message::from_vec(&message).unwrap(), Message::from_vec(&failed).unwrap());
        assert_eq!((failed.metadata.id, &failed.queries), (asked.metadata.id, &asked.queries));
        assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    }

    #[test]
    fn name_without_an_address_is_a_failure_of_the_server() {
        let mut names = Names::default();
        let mut code = |name: String| {
            let mut message = Message::query();
            message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
            let allows = |_: &HostName| Some(Allowed::By("**.example".into()));
            let bytes = answer(&message.to_vec().unwrap(), &mut names, allows).unwrap();
            Message::from_vec(&bytes).unwrap().metadata.response_code
        };
        for number in 0..crate::names::HOURLY {
            assert_eq!(code(format!("n{number}.example.")), ResponseCode::NoError);
        }
        assert_eq!(code("more.example.".into()), ResponseCode::ServFail);
        assert_eq!(code("n0.example.".into()), ResponseCode::NoError);
        assert!(names.take_exhausted().is_some_and(|(name, _)| name.as_str() == "more.example"));
    }

    #[test]
    fn other_names_do_not_exist() {
        let mut names = Names::default();
        let long = format!("{}.a.example.", "x".repeat(63));
        for name in ["b.example.", "a.example.com.", "x.a.example.", "1.2.3.4.", ".", "a_b.", &long] {
            for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT, RecordType::NULL] {
                let answer = ask(&mut names, name, kind);
                let code = answer.metadata.response_code;
                assert_eq!((code, answer.answers.len()), (ResponseCode::NXDomain, 0), "{name} {kind}");
            }
        }
        for name in ["1.1.1.1.in-addr.arpa.", "9.1.18.198.in-addr.arpa.", "a.example."] {
            let answer = ask(&mut names, name, RecordType::PTR);
            assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain, "{name}");
        }
        assert_eq!(names.name_of("198.18.1.0".parse().unwrap()), None, "no address was given");
    }

    #[test]
    fn other_messages_are_refused_or_get_no_answer() {
        let mut names = Names::default();
        let mut code = |message: &Message| {
            let bytes = answer(&message.to_vec().unwrap(), &mut names, |_| Some(Allowed::Exactly))?;
            Some(Message::from_vec(&bytes).unwrap().metadata.response_code)
        };
        let question = Query::query(Name::from_ascii("a.example.").unwrap(), RecordType::A);
        let mut two = Message::query();
        two.add_query(question.clone()).add_query(question.clone());
        let mut chaos = Message::query();
        chaos.add_query(question.clone().set_query_class(DNSClass::CH).clone());
        let mut update = Message::new(7, MessageType::Query, OpCode::Update);
        update.add_query(question.clone());
        for message in [&two, &chaos, &update, &Message::query()] {
            assert_eq!(code(message), Some(ResponseCode::Refused), "{message:?}");
        }
        assert_eq!(code(&Message::response(7, OpCode::Query)), None);
        assert_eq!(answer(&[7; 11], &mut Names::default(), |_| Some(Allowed::Exactly)), None);
        let refused = answer(&[7; 40], &mut Names::default(), |_| Some(Allowed::Exactly));
        assert!(refused.is_none_or(|bytes| bytes[3] & 15 == 5 || bytes[2] & 0x80 != 0));
    }

    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("egress_dns", any_message);
    }
}
