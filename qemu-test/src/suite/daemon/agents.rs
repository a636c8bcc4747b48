// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Eight agents in Python that wait together, and one whose tool runs meanwhile.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentzip_ctl::protocol::{Event, Happening};
use agentzip_ctl::Hint;
use anyhow::{ensure, Context, Result};

use super::super::fixture::cgroup::CGROUP_ROOT;
use super::super::fixture::module::SecondLook;
use super::super::fixture::{controller, host, module, Ctx};
use super::super::sys;
use super::{forget_log, jain, tell, Daemon};
use crate::run::cgroup::{Cgroup, PARENT};
use crate::run::zygote::{Sandbox, Zygote};

/// Agents that wait; one more has a tool running.
const WAITING: usize = 8;
const WORKLOAD: &str = "/opt/agentzip/workload";
/// A wait that does not end by itself.
const WAIT: &str = "llm-wait;expect=3600000";
/// CPU time that the daemon may take, as a part of all processors: so little that it takes long beside the
/// second's worth that may be spent at once.
const BUDGET: f64 = 0.05;
const PROCESSORS: f64 = 2.0;
/// Rounds in which one is stopped.
const STOPS: usize = 6;

/// Events, each with the time at which it arrived.
type Heard = Arc<Mutex<Vec<(Instant, Event)>>>;

/// Listens until the daemon ends.
fn listen(daemon: &Daemon) -> Result<Heard> {
    let mut client = daemon.client()?;
    client.subscribe()?;
    let heard = Heard::default();
    let ours = heard.clone();
    std::thread::spawn(move || {
        while let Ok(Some(event)) = client.next_event() {
            if let Ok(mut list) = ours.lock() {
                list.push((Instant::now(), event));
            }
        }
    });
    Ok(heard)
}

fn heard(list: &Heard) -> Vec<(Instant, Event)> {
    list.lock().map(|list| list.clone()).unwrap_or_default()
}

/// Does something with each agent, two at a time as there are two processors.
fn each(
    agents: &mut [Sandbox],
    work: impl Fn(&mut Sandbox) -> Result<String> + Sync,
) -> Result<Vec<String>> {
    let half = agents.len().div_ceil(2);
    let results: Vec<Result<String>> = std::thread::scope(|scope| {
        let halves: Vec<_> = agents
            .chunks_mut(half)
            .map(|part| scope.spawn(|| part.iter_mut().map(&work).collect::<Vec<_>>()))
            .collect();
        let joined = halves.into_iter().map(|half| half.join());
        joined.flat_map(|half| half.unwrap_or_default()).collect()
    });
    results.into_iter().collect()
}

fn anonymous(cgroups: &[Cgroup]) -> Result<Vec<u64>> {
    cgroups
        .iter()
        .map(|cgroup| Ok(cgroup.charged()?.anonymous))
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn eight_agents(ctx: &mut Ctx) -> Result<()> {
    forget_log();
    ctx.swap_of(512 << 8)?;
    let _second_look = SecondLook::on()?;
    let mut zygote = Zygote::start(Path::new(WORKLOAD), "python3", "sandbox")?;
    let holder = zygote.holder().to_string();
    controller::run(&["template", "add", "--pid", &holder, "--name", "zygote"])?;
    let cgroups = (0..=WAITING)
        .map(|number| Cgroup::create(&format!("agent-{number}")))
        .collect::<Result<Vec<_>>>()?;
    let tree = Path::new(CGROUP_ROOT).join(PARENT);
    // Everything at once, so that a restore that has ended shows that all is back.
    let config = "[schedule]\ncpu_budget = 5\n[prefetch]\nmode = \"all\"\n";
    let daemon = Daemon::start(&tree, config)?;
    let mut client = daemon.client()?;
    let events = listen(&daemon)?;
    for cgroup in &cgroups {
        tell(cgroup.path(), "group", "team")?;
        tell(cgroup.path(), "template", "zygote")?;
    }
    let attached = |client: &mut _| -> Result<usize> {
        Ok(Daemon::list(client)?.iter().filter(|s| s.attached).count())
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while attached(&mut client)? <= WAITING {
        ensure!(
            Instant::now() < deadline,
            "not all are attached: {}",
            super::log()
        );
        std::thread::sleep(Duration::from_millis(100));
    }

    let mut agents = zygote.spawn(&cgroups, 1)?;
    for cgroup in &cgroups {
        tell(cgroup.path(), "phase", "tool-start;tool=work")?;
    }
    each(&mut agents, |agent| Ok(agent.turn()?.digest))?;
    let before_digests = each(&mut agents, |agent| Ok(agent.walk()?.digest))?;
    let before = anonymous(&cgroups)?;
    let (busy, waiting) = (&cgroups[WAITING], &cgroups[..WAITING]);
    let ids: Vec<u64> = waiting.iter().map(id).collect::<Result<_>>()?;
    let taken_from_busy = busy.evicted()?.reclaimed;

    // All wait at once.
    let began = Instant::now();
    let mut told = Vec::new();
    for cgroup in waiting {
        told.push(Instant::now());
        tell(cgroup.path(), "phase", WAIT)?;
    }
    let deadline = began + Duration::from_secs(300);
    loop {
        let seen = Daemon::list(&mut client)?;
        let out = seen
            .iter()
            .filter(|s| ids.contains(&s.id) && s.is_out())
            .count();
        if out == WAITING {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "{out} of {WAITING} are out after {:.0} s: {}",
            began.elapsed().as_secs_f64(),
            super::log()
        );
        std::thread::sleep(Duration::from_secs(1));
    }
    let seconds = began.elapsed().as_secs_f64();
    let after = anonymous(&cgroups)?;
    let (owned, left): (u64, u64) = (
        before[..WAITING].iter().sum(),
        after[..WAITING].iter().sum(),
    );
    println!(
        "@@ daemon: {WAITING} agents of {} MiB together: {} MiB are left after {seconds:.1} s",
        owned >> 20,
        left >> 20
    );
    ensure!(owned > 64 << 20, "the agents own {owned} bytes only");
    ensure!(left < owned / 4, "{left} of {owned} bytes are left");

    let all = heard(&events);
    let jobs: Vec<Job> = all
        .iter()
        .filter_map(|(at, event)| Job::of(*at, event))
        .collect();
    // Until the first had nothing left, all eight wanted their turn.
    let done = (0..=jobs.len()).find(|&end| {
        ids.iter()
            .any(|&id| bytes_of(id, &jobs[..end]) == bytes_of(id, &jobs))
    });
    let together = &jobs[..done.context("no job")?];
    let shares: Vec<f64> = ids
        .iter()
        .map(|&id| bytes_of(id, together) as f64)
        .collect();
    let fairness = jain(&shares);
    let last = together.last().context("no job before the first was out")?;
    let seconds = (last.ended - began).as_secs_f64();
    let cpu: f64 = together.iter().map(|job| job.cpu).sum();
    let part = cpu / (seconds * PROCESSORS * BUDGET);
    println!(
        "@@ daemon: until the first was out, {seconds:.1} s and {} jobs: Jain's index {fairness:.3}, {:.0}% of the CPU budget",
        together.len(),
        part * 100.0
    );
    ensure!(fairness >= 0.95, "Jain's index {fairness:.3}: {shares:?}");
    ensure!(
        (0.9..=1.1).contains(&part),
        "{cpu:.2} s of CPU in {seconds:.1} s is {:.0}% of the budget",
        part * 100.0
    );

    // The ninth had a tool running all the time.
    let busy_id = id(busy)?;
    ensure!(
        !jobs.iter().any(|job| job.id == busy_id),
        "reclaim was spent on a sandbox whose tool runs"
    );
    let now = busy.evicted()?.reclaimed;
    ensure!(
        now == taken_from_busy,
        "{} pages of it",
        now - taken_from_busy
    );
    ensure!(
        after[WAITING] >= before[WAITING] * 9 / 10,
        "its memory fell from {} to {}",
        before[WAITING],
        after[WAITING]
    );

    let hint_ms = told.iter().zip(&ids).filter_map(|(told, id)| {
        let came = all.iter().find(|(at, event)| {
            at >= told
                && matches!(&event.happening, Happening::Hint { cgroup_id, .. } if cgroup_id == id)
        });
        came.map(|(at, _)| (*at - *told).as_secs_f64() * 1e3)
    });
    let hint_ms: Vec<f64> = hint_ms.collect();
    ensure!(
        hint_ms.len() == WAITING,
        "{} hints were reported",
        hint_ms.len()
    );
    println!(
        "@@ daemon: from an xattr to the event: median {:.2} ms",
        median(hint_ms)
    );

    latency(&mut client, busy)?;
    stops(&mut client, &events, waiting, &ids)?;

    for cgroup in &cgroups {
        tell(cgroup.path(), "phase", "tool-start;tool=walk")?;
    }
    let after_digests = each(&mut agents, |agent| Ok(agent.walk()?.digest))?;
    ensure!(
        before_digests == after_digests,
        "wrong content after the wait"
    );
    for agent in agents {
        agent.exit()?;
    }
    daemon.end()?;
    for cgroup in cgroups {
        cgroup.remove()?;
    }
    let gone = || Ok(module::list("sandboxes")?.is_empty());
    host::wait_until("sandboxes should be gone", Duration::from_secs(20), gone)?;
    controller::run(&["template", "rm", "zygote"])?;
    // It is waited for.
    sys::default_sigchld();
    zygote.finish()
}

/// How long a hint by the socket takes, beside a ping-pong on a pair of sockets. Reported only: both are a
/// matter of two processors that have other work.
fn latency(client: &mut agentzip_ctl::client::Client, busy: &Cgroup) -> Result<()> {
    const ROUNDS: usize = 100;
    let (mut near, mut far) = UnixStream::pair()?;
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while far
            .read_exact(&mut byte)
            .and_then(|()| far.write_all(&byte))
            .is_ok()
        {}
    });
    let path = Path::new("/").join(busy.path().strip_prefix(CGROUP_ROOT)?);
    let (mut pings, mut hints) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let began = Instant::now();
        near.write_all(&[1])?;
        near.read_exact(&mut [0])?;
        pings.push(began.elapsed().as_secs_f64() * 1e3);
        let hint = match round % 2 {
            0 => Hint::ToolEnd,
            _ => Hint::ToolStart { tool: None },
        };
        let began = Instant::now();
        client.hint(&path, &hint)?;
        hints.push(began.elapsed().as_secs_f64() * 1e3);
    }
    drop(near);
    echo.join().ok().context("the echo died")?;
    let (ping, hint) = (median(pings), median(hints));
    println!(
        "@@ daemon: a hint by socket takes {hint:.2} ms, a ping-pong {ping:.2} ms: {:.1} times (medians)",
        hint / ping
    );
    Ok(())
}

/// One after the other wakes, waits again, and is woken in the middle of that.
fn stops(
    client: &mut agentzip_ctl::client::Client,
    events: &Heard,
    waiting: &[Cgroup],
    ids: &[u64],
) -> Result<()> {
    let mut stopped = Vec::new();
    for round in 0..STOPS {
        let (cgroup, id) = (&waiting[round], ids[round]);
        tell(cgroup.path(), "phase", "first-token")?;
        wait_for(client, id, |seen| {
            !seen.restoring && seen.state == "resuming"
        })?;
        tell(cgroup.path(), "phase", WAIT)?;
        wait_for(client, id, |seen| seen.compressing || seen.is_out())?;
        let from = heard(events).len();
        tell(cgroup.path(), "phase", "first-token")?;
        wait_for(client, id, |seen| !seen.compressing)?;
        std::thread::sleep(Duration::from_millis(200));
        let stop = heard(events)[from..]
            .iter()
            .find_map(|(_, event)| match event.happening {
                Happening::Reclaimed {
                    cgroup_id, stop_us, ..
                } if cgroup_id == id => stop_us,
                _ => None,
            });
        stopped.extend(stop.map(|us| us as f64 / 1e3));
    }
    let count = stopped.len();
    ensure!(
        count >= STOPS / 2,
        "only {count} of {STOPS} jobs could be stopped"
    );
    println!(
        "@@ daemon: from a stop to the end of its job: median {:.1} ms, longest {:.1} ms, of {count}",
        median(stopped.clone()),
        stopped.iter().copied().fold(0.0, f64::max)
    );
    Ok(())
}

fn wait_for(
    client: &mut agentzip_ctl::client::Client,
    id: u64,
    done: impl Fn(&super::Seen) -> bool,
) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = Daemon::list(client)?;
        let it = seen
            .iter()
            .find(|seen| seen.id == id)
            .context("a sandbox is missing")?;
        if done(it) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{it:?} after 60 s: {}",
            super::log()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn id(cgroup: &Cgroup) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::metadata(cgroup.path())?.ino())
}

/// A reclaim job that has ended.
struct Job {
    /// Whose memory.
    id: u64,
    /// When we heard of its end.
    ended: Instant,
    /// By how much that fell.
    bytes: u64,
    /// CPU time, in seconds.
    cpu: f64,
}

impl Job {
    fn of(ended: Instant, event: &Event) -> Option<Job> {
        match &event.happening {
            Happening::Reclaimed {
                cgroup_id,
                reclaimed_bytes,
                cpu_us,
                ..
            } => Some(Job {
                id: *cgroup_id,
                ended,
                bytes: *reclaimed_bytes,
                cpu: *cpu_us as f64 / 1e6,
            }),
            _ => None,
        }
    }
}

fn bytes_of(id: u64, jobs: &[Job]) -> u64 {
    let own = jobs.iter().filter(|job| job.id == id);
    own.map(|job| job.bytes).sum()
}
