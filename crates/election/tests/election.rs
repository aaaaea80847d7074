//! Candidates against Hutch's own API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use hutch_apiserver::{ApiServer, Identity};
use hutch_election::{Elector, Error, Guard, Lost, Settings, Term, Timing};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Config};
use serde_json::json;
use tower::ServiceExt;

const NAME: &str = "a3317529.agent-sandbox.x-k8s.io";
/// Short, so that a test sees a lease end; in the proportions of the real ones.
const TIMING: Timing = Timing {
    lease: Duration::from_secs(3),
    renew: Duration::from_secs(2),
    retry: Duration::from_millis(200),
};

async fn server() -> ApiServer {
    ApiServer::open(hutch_apiserver::Config::default()).await.expect("an API server in memory opens")
}

fn client(server: &ApiServer) -> Client {
    server.client(Identity::admin(), "default")
}

fn elector(client: Client, identity: &str) -> Elector {
    let settings = Settings {
        namespace: "default".into(),
        name: NAME.into(),
        identity: identity.into(),
        timing: TIMING,
    };
    Elector::new(client, settings).expect("good settings")
}

async fn lease(server: &ApiServer) -> Lease {
    Api::namespaced(client(server), "default").get(NAME).await.expect("the lease is there")
}

async fn holder(server: &ApiServer) -> String {
    lease(server).await.spec.unwrap().holder_identity.unwrap()
}

/// A client whose requests fail once the switch is set, as if the network were gone.
fn severable(client: Client, severed: Arc<AtomicBool>) -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, severed) = (client.clone(), severed.clone());
        async move {
            if severed.load(Ordering::SeqCst) {
                return Err(tower::BoxError::from("the network is gone"));
            }
            client.send(request).await.map_err(tower::BoxError::from)
        }
        .boxed()
    });
    Client::new(service, "default")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_never_lead_at_once_and_one_always_takes_over() {
    let server = server().await;
    let (leading, most, terms) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let candidates = (0..3).map(|n| {
        let mut elector = elector(client(&server), &format!("candidate-{n}"));
        let (leading, most, terms) = (leading.clone(), most.clone(), terms.clone());
        tokio::spawn(async move {
            elector.acquire().await;
            most.fetch_max(leading.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let held = tokio::time::timeout(Duration::from_millis(500), elector.hold()).await;
            assert!(held.is_err(), "a lease that is renewed cannot be taken: {held:?}");
            leading.fetch_sub(1, Ordering::SeqCst);
            terms.fetch_add(1, Ordering::SeqCst);
            // One gives it back, the others vanish.
            if terms.load(Ordering::SeqCst) == 1 {
                elector.release().await;
            }
        })
    });
    for candidate in candidates.collect::<Vec<_>>() {
        candidate.await.expect("no panic");
    }
    assert_eq!((most.load(Ordering::SeqCst), terms.load(Ordering::SeqCst)), (1, 3));
    let spec = lease(&server).await.spec.unwrap();
    assert_eq!(spec.lease_transitions, Some(2), "each takeover is counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_given_back_is_free_at_once() {
    let server = server().await;
    let mut first = elector(client(&server), "first");
    first.acquire().await;
    assert_eq!(holder(&server).await, "first");
    let term = first.term();
    assert!(term.leads());
    first.release().await;
    assert!(!term.leads());
    let spec = lease(&server).await.spec.unwrap();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(""), Some(1)));
    let mut second = elector(client(&server), "second");
    tokio::time::timeout(TIMING.renew, second.acquire())
        .await
        .expect("without waiting for the old lease's end");
    assert_eq!(holder(&server).await, "second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_cut_off_stops_before_another_begins_and_its_late_write_is_refused() {
    let server = server().await;
    let severed = Arc::new(AtomicBool::new(false));
    let mut first = elector(severable(client(&server), severed.clone()), "first");
    let term: Term = first.term();
    first.acquire().await;

    // The first leader's other requests still get through: only the guard stands between them and the server.
    let service = tower::ServiceBuilder::new().layer(Guard::new(term.clone())).service(tower::service_fn({
        let client = client(&server);
        move |request| {
            let client = client.clone();
            async move { client.send(request).await }.boxed()
        }
    }));
    let guarded: Api<ConfigMap> = Api::namespaced(Client::new(service.boxed_clone(), "default"), "default");
    let map = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    guarded.create(&PostParams::default(), &map("in-time")).await.expect("a leader's write");

    let mut second = elector(client(&server), "second");
    let second_term = second.term();
    let second = tokio::spawn(async move {
        second.acquire().await;
        second
    });
    severed.store(true, Ordering::SeqCst);
    assert_eq!(first.hold().await, Lost::NotRenewed);
    assert!(!second_term.leads(), "the second waits longer than the first leads");
    let late = guarded.create(&PostParams::default(), &map("late")).await.unwrap_err();
    let kube::Error::Service(cause) = late else { panic!("{late}") };
    assert!(matches!(cause.downcast_ref(), Some(Error::NotLeader)), "{cause}");
    assert!(
        guarded.get_opt("late").await.unwrap().is_none(),
        "it never came to the server, and reading continues"
    );

    let second = tokio::time::timeout(TIMING.lease * 2, second).await.expect("in time").expect("no panic");
    assert!(second.term().leads() && !term.leads());
    assert_eq!(holder(&server).await, "second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_lease_was_taken_says_so() {
    let server = server().await;
    let mut elector = elector(client(&server), "first");
    elector.acquire().await;
    let api: Api<Lease> = Api::namespaced(client(&server), "default");
    let taken = json!({"spec": {"holderIdentity": "go-replica_1", "leaseDurationSeconds": 15}});
    api.patch(NAME, &PatchParams::default(), &Patch::Merge(taken)).await.expect("another process takes it");
    assert_eq!(elector.hold().await, Lost::Taken("go-replica_1".into()));
    assert!(!elector.term().leads());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_as_client_go_writes_it_is_waited_out() {
    let server = server().await;
    let api: Api<Lease> = Api::namespaced(client(&server), "default");
    let theirs = serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "spec": {"holderIdentity": "pod-7d9f_0b1c", "leaseDurationSeconds": 2, "leaseTransitions": 4,
            "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"},
    }));
    api.create(&PostParams::default(), &theirs.unwrap()).await.expect("a Go replica's lease");
    let mut elector = elector(client(&server), "hutch");
    // Clocks of two machines are never compared: the two seconds count from now.
    assert!(tokio::time::timeout(Duration::from_secs(1), elector.acquire()).await.is_err());
    elector.acquire().await;
    let spec = lease(&server).await.spec.unwrap();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("hutch"), Some(5)));
    assert_eq!(spec.lease_duration_seconds, Some(3));
}

#[test]
fn times_with_which_two_could_lead_are_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let config = Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = Client::try_from(config).unwrap();
    let with = |timing, identity: &str| {
        let (namespace, name, identity) = ("n".to_owned(), "l".to_owned(), identity.to_owned());
        Elector::new(client.clone(), Settings { namespace, name, identity, timing }).map(drop)
    };
    let seconds = Duration::from_secs;
    assert!(with(Timing::default(), "a").is_ok());
    assert!(matches!(with(Timing::default(), ""), Err(Error::Empty { field: "identity" })));
    for (lease, renew, retry) in [(10, 10, 2), (15, 2, 2), (15, 10, 0)] {
        let timing = Timing { lease: seconds(lease), renew: seconds(renew), retry: seconds(retry) };
        assert!(matches!(with(timing, "a"), Err(Error::Timing { .. })), "{timing:?}");
    }
    let timing = Timing { lease: Duration::from_millis(15_500), ..Timing::default() };
    assert!(matches!(with(timing, "a"), Err(Error::Timing { .. })));
}
