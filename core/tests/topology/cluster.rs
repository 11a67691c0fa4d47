//! A cluster whose nodes fail and whose slots move.

use super::support::Server;
use super::support::sets::Cluster;
use super::*;

const CALLERS: usize = 3;

fn names() -> Vec<String> {
    (0..9).map(|at| format!("contended:{at}")).collect()
}

/// A name that lies at this primary, as the slots were spread in the beginning.
fn name_at(cluster: &Cluster, node: usize) -> String {
    let names = (0..).map(|at| format!("n{at}"));
    names
        .into_iter()
        .find(|name| cluster.slots(node).contains(&cluster.slot(name)))
        .unwrap()
}

/// Whether any of these nodes has the hold and is the primary of its slot.
fn is_there(nodes: &[&Server], guard: &Guard) -> bool {
    let question = format!("HEXISTS {} {}", guard.name(), guard.owner());
    // Any other node sends us elsewhere.
    nodes
        .iter()
        .any(|node| node.try_ask::<u32>(&question).is_ok_and(|found| found == 1))
}

fn without(cluster: &Cluster, gone: usize) -> Vec<&Server> {
    cluster
        .nodes
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != gone)
        .map(|(_, node)| node)
        .collect()
}

fn keys(nodes: &[&Server]) -> u64 {
    nodes
        .iter()
        .filter(|node| node.is_primary())
        .map(|node| node.ask::<u64>("DBSIZE"))
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_all_slots_are_taken_waited_for_and_released() {
    let cluster = Cluster::start(3, false);
    // One node tells of the others.
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[1].port());
    let clients = [client(&url).await, client(&url).await];
    let (round, tasks) = Round::start(&clients, &names(), CALLERS);
    let holds = take(&clients[0], "held", 100).await;
    for node in &cluster.nodes {
        assert!(node.ask::<u64>("DBSIZE") > 0, "every node has some");
    }
    round.goes_on(200).await;
    round.end(tasks).await;
    assert_eq!(
        (
            round.overlaps.load(Ordering::SeqCst),
            round.lost.load(Ordering::SeqCst)
        ),
        (0, 0)
    );
    for guard in holds {
        soon("a release", guard.release()).await.unwrap();
    }
    assert_eq!(keys(&without(&cluster, 9)), 0);
    assert_eq!(
        clients[0].stats().connects,
        3,
        "one connection for commands to each node"
    );
}

/// There it has no direct connection: each lock is another server's.
#[tokio::test(flavor = "multi_thread")]
async fn threads_ask_the_engine_in_a_cluster() {
    let cluster = Cluster::start(3, false);
    let client = client(&cluster.url()).await;
    let locks: Vec<_> = (0..3)
        .map(|node| client.lock(&name_at(&cluster, node)).unwrap())
        .collect();
    let pairs = tokio::task::spawn_blocking(move || {
        for lock in locks.iter().cycle().take(90) {
            lock.acquire().wait().unwrap().release().wait().unwrap();
        }
    });
    soon("the pairs", pairs).await.unwrap();
    for node in &cluster.nodes {
        assert_eq!(
            support::direct_connection(&node.ask::<String>("CLIENT LIST")),
            None
        );
    }
}

/// Locks are taken, held and waited for while `change` lets the first primary be replaced.
async fn survives(change: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::start(3, true);
    let clients = [client(&cluster.url()).await, client(&cluster.url()).await];
    let (round, tasks) = Round::start(&clients, &names(), CALLERS);
    let holds = take(&clients[0], "held", 100).await;
    round.goes_on(100).await;

    let start = Instant::now();
    change(&mut cluster);
    eventually("another primary", || cluster.nodes[3].is_primary()).await;
    let promoted = start.elapsed();
    let there = name_at(&cluster, 0);
    let lock = clients[1].lock(&there).unwrap();
    soon("a lock at the new primary", lock.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    println!(
        "promoted after {promoted:?}, a grant by the new primary after {:?}",
        start.elapsed()
    );
    round.goes_on(300).await;
    let lost = kept_or_told(&holds, |guard| is_there(&without(&cluster, 0), guard)).await;
    println!("{lost} of {} holds were lost, and told", holds.len());
    round.end(tasks).await;

    assert_eq!(round.overlaps.load(Ordering::SeqCst), 0);
    for guard in holds {
        let known = guard.lost_reason().is_some();
        let released = soon("a release", guard.release()).await;
        assert_eq!(released.is_err(), known, "{released:?}");
    }
    eventually("nothing is left", || keys(&without(&cluster, 0)) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_fail_over_is_followed() {
    survives(|cluster| cluster.nodes[3].ask::<()>("CLUSTER FAILOVER")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_primary_is_survived() {
    survives(|cluster| cluster.nodes[0].kill()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_hangs_is_left() {
    survives(|cluster| cluster.nodes[0].hang()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_whose_locks_did_not_survive_are_told() {
    let mut cluster = Cluster::start(3, true);
    let client = client(&cluster.url()).await;
    let kept = take(&client, "kept", 60).await;
    eventually("the replica has them", || {
        cluster.nodes[3].ask::<u64>("DBSIZE") == cluster.nodes[0].ask::<u64>("DBSIZE")
    })
    .await;
    cluster.nodes[0].cut_replicas_off();
    let all = take(&client, "late", 60).await;
    let lies_there = |guard: &&Guard| cluster.slots(0).contains(&cluster.slot(guard.name()));
    let (late, others): (Vec<&Guard>, Vec<&Guard>) = all.iter().partition(lies_there);
    assert!(!late.is_empty() && !others.is_empty());
    cluster.nodes[0].kill();
    for guard in late {
        // Long before the next renewal, which was due after 20 s.
        let reason = soon("the loss", guard.lost()).await;
        assert_eq!(reason, LostReason::Deleted, "{}", guard.name());
    }
    assert!(cluster.nodes[3].is_primary());
    assert!(kept.iter().chain(others).all(Guard::is_held));
}

/// A node that knows only itself has a map of its own slots, whose other nodes serve theirs as ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_knows_only_itself_costs_no_holds() {
    let cluster = Cluster::start(3, false);
    let slots = cluster.slots(0);
    let forget = || {
        cluster.nodes[0].ask::<()>("CLUSTER RESET SOFT");
        let (first, last) = (slots.start, slots.end - 1);
        cluster.nodes[0].ask::<()>(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
    };
    // The others tell it of themselves again, after some seconds.
    let forgets_again = || {
        let info = cluster.nodes[0].ask::<String>("CLUSTER INFO");
        if !info.contains("cluster_known_nodes:1\r") {
            forget();
        }
    };
    let client = client(&cluster.url()).await;
    let mut holds = Vec::new();
    // It forgets the others only while it has no keys.
    let elsewhere = (0..).map(|at| format!("n{at}"));
    for name in elsewhere
        .filter(|name| !slots.contains(&cluster.slot(name)))
        .take(30)
    {
        let options = LockOptions::new().watchdog_lease(ms(6000));
        let lock = client.lock_with(&name, options).unwrap();
        holds.push(soon("a lock", lock.acquire()).await.unwrap());
    }
    for _ in 0..3 {
        let (connects, renewed) = (client.stats().connects, client.stats().renewed);
        forget();
        cluster.nodes[1].ask::<u32>("CLIENT KILL TYPE normal SKIPME yes");
        eventually("it connects, and renews all twice", || {
            forgets_again();
            assert!(holds.iter().all(Guard::is_held), "a hold is lost");
            client.stats().connects > connects && client.stats().renewed >= renewed + 60
        })
        .await;
    }
    for guard in holds {
        soon("a release", guard.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_while_their_locks_are_held_and_waited_for() {
    let cluster = Cluster::start(2, false);
    let clients = [client(&cluster.url()).await, client(&cluster.url()).await];
    // Many locks in one slot, held and contended.
    let tagged = |kind: &str, count: usize| -> Vec<String> {
        (0..count).map(|at| format!("{kind}:{at}{{tag}}")).collect()
    };
    let slot = cluster.slot("{tag}");
    let from = usize::from(!cluster.slots(0).contains(&slot));
    let (round, tasks) = Round::start(&clients, &tagged("contended", 5), 4);
    let mut holds = Vec::new();
    for name in tagged("held", 60) {
        let options = LockOptions::new().watchdog_lease(ms(6000));
        let lock = clients[0].lock_with(&name, options).unwrap();
        holds.push(soon("a lock", lock.acquire()).await.unwrap());
    }
    round.goes_on(50).await;

    let (mut here, mut there) = (from, 1 - from);
    for _ in 0..3 {
        cluster.begin_move(slot, here, there);
        round.goes_on(30).await;
        // Some keys are here and some there for more than a renewal.
        cluster.move_keys(slot, here, there, Some(25));
        let renewed = clients[0].stats().renewed;
        eventually("renewals meanwhile", || {
            clients[0].stats().renewed > renewed + 60
        })
        .await;
        // A lock that is created meanwhile, too.
        eventually("all keys are moved", || {
            cluster.move_keys(slot, here, there, None);
            cluster.nodes[here].ask::<u64>(&format!("CLUSTER COUNTKEYSINSLOT {slot}")) == 0
        })
        .await;
        cluster.end_move(slot, here, there);
        std::mem::swap(&mut here, &mut there);
        round.goes_on(50).await;
    }
    round.end(tasks).await;
    assert_eq!(
        (
            round.overlaps.load(Ordering::SeqCst),
            round.lost.load(Ordering::SeqCst)
        ),
        (0, 0)
    );
    for guard in holds {
        assert!(
            is_there(&[&cluster.nodes[here]], &guard) && guard.is_held(),
            "{}",
            guard.name()
        );
        soon("a release", guard.release()).await.unwrap();
    }
    assert_eq!(keys(&without(&cluster, 9)), 0);
}

async fn is_woken(cluster: &Cluster, name: &str, meanwhile: impl AsyncFnOnce()) {
    is_woken_by(cluster, name, ClusterPubsub::Auto, meanwhile).await;
}

/// A waiter that only a message can wake.
async fn is_woken_by(
    cluster: &Cluster,
    name: &str,
    by: ClusterPubsub,
    meanwhile: impl AsyncFnOnce(),
) {
    let options = ClientOptions::new().cluster_pubsub(by);
    let holder = client_with(&cluster.url(), options.clone()).await;
    let waiter = client_with(
        &cluster.url(),
        options.recheck(Duration::from_secs(3600)).tracking(false),
    )
    .await;
    // A waiter looks again at the end of the lease, which no test reaches.
    let long = LockOptions::new().watchdog_lease(Duration::from_secs(600));
    let lock = holder.lock_with(name, long).unwrap();
    let guard = soon("the lock", lock.acquire()).await.unwrap();
    let waiting = tokio::spawn(waiter.lock(name).unwrap().acquire());
    eventually("it waits", || listeners(cluster) > 0).await;
    meanwhile().await;
    soon("the release", guard.release()).await.unwrap();
    drop(soon("the waiter", waiting).await.unwrap().unwrap());
}

/// How many channels of locks are listened to, of whichever sort.
fn listeners(cluster: &Cluster) -> usize {
    cluster.nodes.iter().map(listened).sum()
}

fn listened(node: &Server) -> usize {
    let (classic, sharded) = channels(node);
    classic + sharded
}

/// How many are listened to here for all nodes, and for the node itself.
fn channels(node: &Server) -> (usize, usize) {
    let of = |question: &str| {
        node.try_ask::<Vec<String>>(question)
            .map_or(0, |channels| channels.len())
    };
    (
        of("PUBSUB CHANNELS redisson_lock__channel:*"),
        of("PUBSUB SHARDCHANNELS redisson_lock__channel:*"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_are_published_as_the_option_says() {
    let cluster = Cluster::start(2, false);
    let shards = cluster.nodes[0]
        .try_ask::<redis::Value>("PUBSUB SHARDNUMSUB")
        .is_ok();
    let modes = [
        (ClusterPubsub::Auto, if shards { (0, 1) } else { (1, 0) }),
        (ClusterPubsub::Classic, (1, 0)),
        (ClusterPubsub::Sharded, (0, 1)),
        (ClusterPubsub::Both, (1, 1)),
    ];
    let known = modes
        .into_iter()
        .filter(|(mode, _)| shards || matches!(mode, ClusterPubsub::Auto | ClusterPubsub::Classic));
    for (mode, expected) in known {
        is_woken_by(&cluster, "orders", mode, async || {
            eventually("it listens as it should", || {
                let all = cluster.nodes.iter().map(channels);
                all.fold((0, 0), |sum, node| (sum.0 + node.0, sum.1 + node.1)) == expected
            })
            .await;
        })
        .await;
        eventually("nobody listens", || listeners(&cluster) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wake_waiters_before_and_after_their_slot_moves() {
    let cluster = Cluster::start(2, false);
    is_woken(&cluster, "orders", async || {}).await;
    eventually("nobody listens", || listeners(&cluster) == 0).await;
    let slot = cluster.slot("orders");
    let from = usize::from(!cluster.slots(0).contains(&slot));
    is_woken(&cluster, "orders", async || {
        cluster.move_slot(slot, from, 1 - from);
        // Messages to all nodes can be heard at any.
        let classic = channels(&cluster.nodes[0]).0 + channels(&cluster.nodes[1]).0 == 1;
        eventually("it listens there", || {
            classic || listened(&cluster.nodes[1 - from]) == 1
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_whose_channel_lies_elsewhere_are_woken_all_the_same() {
    let cluster = Cluster::start(3, false);
    for name in ["a{b", "{}x", "a}b"] {
        is_woken(&cluster, name, async || {}).await;
        eventually("nobody listens", || listeners(&cluster) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_whose_keys_lie_in_two_slots_is_refused() {
    let cluster = Cluster::start(2, false);
    let client = client(&cluster.url()).await;
    let fenced = LockOptions::new().fencing(true);
    for name in ["a{b", "{}x", "a}b"] {
        let lock = client.lock_with(name, fenced.clone()).unwrap();
        let error = soon("an answer", lock.acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameNotClusterable, "{error}");
        assert!(
            error.message().contains("redisson_lock_token") && error.message().contains("slot"),
            "{error}"
        );
    }
    for name in ["a", "{tag}b", "a{tag}"] {
        let guard = soon(
            "the lock",
            client.lock_with(name, fenced.clone()).unwrap().acquire(),
        )
        .await
        .unwrap();
        assert!(guard.fencing_token().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_delays_no_other() {
    // Nobody takes its place.
    let cluster = Cluster::start(3, false);
    let client = client(&cluster.url()).await;
    let options = LockOptions::new().watchdog_lease(ms(3000));
    let mut holds = Vec::new();
    for node in 0..3 {
        let lock = client
            .lock_with(&name_at(&cluster, node), options.clone())
            .unwrap();
        holds.push(soon("a lock", lock.acquire()).await.unwrap());
    }
    let other = client
        .lock(&format!("{{{}}}", name_at(&cluster, 1)))
        .unwrap();
    cluster.nodes[0].hang();
    let reason = soon("the loss at the node that hangs", holds[0].lost()).await;
    assert_eq!(reason, LostReason::Unreachable);
    assert!(holds[1].is_held() && holds[2].is_held());
    let start = Instant::now();
    let guard = soon("an answer of another node", other.try_acquire())
        .await
        .unwrap()
        .expect("it is free");
    println!("another node served after {:?}", start.elapsed());
    soon("a release", guard.release()).await.unwrap();
}

/// The commands that docs/security.md adds for a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_documented_commands_can_do_everything() {
    let cluster = Cluster::start(2, false);
    let documented = include_str!("../../../docs/security.md");
    let more = documented
        .lines()
        .find_map(|line| line.strip_prefix("- **In a cluster**: `"))
        .unwrap();
    let more = more.split('`').next().unwrap();
    let one = documented
        .lines()
        .find(|line| line.starts_with("ACL SETUSER app reset "))
        .unwrap();
    let shards = cluster.nodes[0]
        .try_ask::<redis::Value>("PUBSUB SHARDNUMSUB")
        .is_ok();
    for node in cluster.nodes.iter().filter(|_| shards) {
        node.ask::<()>(&format!("{one} {more}"));
    }
    let url = cluster
        .url()
        .replace("://", if shards { "://app:password@" } else { "://" });
    let clients = [client(&url).await, client(&url).await];
    let names: Vec<String> = (0..4).map(|at| format!("orders:{at}")).collect();
    let (round, tasks) = Round::start(&clients, &names, 3);
    round.goes_on(50).await;
    let slot = cluster.slot("orders:0");
    let from = usize::from(!cluster.slots(0).contains(&slot));
    cluster.begin_move(slot, from, 1 - from);
    round.goes_on(20).await;
    eventually("all keys are moved", || {
        cluster.move_keys(slot, from, 1 - from, None);
        cluster.nodes[from].ask::<u64>(&format!("CLUSTER COUNTKEYSINSLOT {slot}")) == 0
    })
    .await;
    cluster.end_move(slot, from, 1 - from);
    round.goes_on(50).await;
    round.end(tasks).await;
    let told: Vec<String> = clients
        .iter()
        .flat_map(Client::events)
        .map(|event| event.text)
        .collect();
    assert!(!told.iter().any(|text| text.contains("NOPERM")), "{told:?}");
}

#[tokio::test]
async fn a_url_of_one_server_that_leads_to_a_node_is_told() {
    let cluster = Cluster::start(2, false);
    let client = client(&cluster.nodes[0].url()).await;
    let lock = client.lock(&name_at(&cluster, 1)).unwrap();
    let error = soon("an answer", lock.acquire()).await.unwrap_err();
    assert!(error.message().contains("redis+cluster://"), "{error}");
}

#[tokio::test]
async fn nodes_that_cannot_be_reached_are_told() {
    let error = soon(
        "an answer",
        Client::connect("redis+cluster://127.0.0.1:1,127.0.0.1:2"),
    )
    .await
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_in_no_cluster_is_told() {
    let server = Server::start();
    let url = server.url().replace("redis://", "redis+cluster://");
    let error = soon("an answer", Client::connect(&url)).await.unwrap_err();
    assert!(error.message().contains("cluster"), "{error}");
}

/// Each primary has one replica.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_asked_for_at_the_node_of_the_lock_also_after_a_slot_moved() {
    let cluster = Cluster::start(2, true);
    let client = client(&cluster.url()).await;
    let lock = |name: &str, replicas| {
        client
            .lock_with(name, LockOptions::new().replicas(replicas))
            .unwrap()
    };
    for name in names() {
        let guard = soon("acknowledged", lock(&name, 1).acquire())
            .await
            .expect("granted");
        guard.release().await.expect("released");
    }
    let name = name_at(&cluster, 0);
    let error = soon("an answer", lock(&name, 2).acquire())
        .await
        .expect_err("there is only one");
    assert_eq!(error.kind(), ErrorKind::NotReplicated);
    assert!(error.message().contains("1 of the 2 replicas"), "{error}");
    cluster.move_slot(cluster.slot(&name), 0, 1);
    soon("acknowledged", lock(&name, 1).acquire())
        .await
        .expect("granted")
        .release()
        .await
        .expect("released");
}
