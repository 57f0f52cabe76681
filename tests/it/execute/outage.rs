//! A cluster that becomes unreachable and returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bursar::desired::watched::managed_kinds;
use bursar::observed::cluster::{ClusterWatch, connect};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::world::{World, cluster, config, kubectl, quota};

/// Forwards connections to a port while `open` is true. When it becomes false, closes all of them. Returns its own
/// port, and the number of connections that it has refused.
pub async fn proxy(port: u16, open: watch::Receiver<bool>) -> (u16, Arc<AtomicUsize>) {
    let refused = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&refused);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("the system has a free port");
    let own = listener.local_addr().expect("a listener has an address").port();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut open = open.clone();
            if !*open.borrow() {
                counted.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            tokio::spawn(async move {
                let mut far = TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => {}
                    _ = open.wait_for(|open| !open) => {}
                }
            });
        }
    });
    (own, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_cluster_has_no_inventory_and_is_listed_again_when_it_returns() {
    let mut world = World::new("execute-away").await;
    let actions = vec![world.apply(&world.namespace_manifest()), world.apply(&quota("16"))];
    world.must(actions).await;
    let (open, opened) = watch::channel(true);
    let mut config = config().await;
    let (port, _) = proxy(config.cluster_url.port_u16().expect("the URL has a port"), opened).await;
    config.cluster_url = format!("https://localhost:{port}").parse().expect("the URL is valid");
    let through = ClusterWatch::start(
        &connect(config).expect("the kubeconfig is valid"),
        cluster(),
        managed_kinds(),
        Arc::default(),
    );
    through.wait_until_ready(Duration::from_mins(1)).await.expect("the cluster becomes ready");
    let key = world.key("v1", "ResourceQuota", "bursar");
    assert!(through.inventory().expect("the cluster is ready").objects.contains_key(&key));

    open.send_replace(false);
    until("the inventory is withdrawn", || through.inventory().is_none()).await;
    let health = through.health();
    assert!(health.error.is_some_and(|error| error.contains("check that the API server runs")));
    kubectl(&["delete", "resourcequota", "bursar", "-n", "execute-away"]);
    kubectl(&["label", "namespace", "execute-away", "theirs=yes"]);

    open.send_replace(true);
    until("the changes during the outage are observed", || {
        through.inventory().is_some_and(|inventory| !inventory.objects.contains_key(&key))
    })
    .await;
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let awaited = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(2), awaited).await.expect(what);
}
