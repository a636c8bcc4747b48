// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a tenant can learn of another one from its own sandbox: what its pages occupy, and how long each
//! takes to come back.
//!
//! A tenant who guesses what another one has in memory writes its guess, has it stored, and looks. So one
//! sandbox, the *victim*, has pages that the other one, the *curious*, also has, and pages that it has not, mixed
//! by a coin for each page. In another domain nothing may tell which is which: the bytes that the curious one's
//! pages take are the same, byte for byte, whatever the victim has; and the times of 10,000 accesses to pages of
//! both kinds are of one distribution by the rank-sum test of Mann and Whitney (two-sided, z below 4, which
//! chance alone exceeds once in 15,000 runs). In the same group the bytes differ, as they should, and the
//! test tells pages apart that really take different times: it can fail.

use anyhow::{ensure, Context, Result};

use super::fixture::page::{Kind, Rng, Spec};
use super::fixture::puppet::{Family, Puppet, Region};
use super::fixture::{host, module, page_out, Ctx, Sandbox};
use super::runner::Test;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("isolation.", stringify!($f)),
            timeout_s: 240,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(other_domain_shows_nothing),
    test!(same_group_shows_sizes),
    test!(times_can_be_told_apart),
];

/// Pages that are guessed in a round.
const PAGES: usize = 250;
/// Rounds that give 10,000 samples.
const ROUNDS: usize = 40;
/// Rounds where a difference shows soon.
const FEW: usize = 6;
/// Largest z of times that are of one distribution.
const SAME: f64 = 4.0;
/// Least z of times that surely are not.
const DIFFERENT: f64 = 10.0;

/// A template and whom sandboxes are forked from.
struct Home {
    name: &'static str,
    domain: Option<&'static str>,
    family: Family,
    zygote: Puppet,
    _holder: Puppet,
}

impl Home {
    fn new(ctx: &Ctx, name: &'static str, domain: Option<&'static str>) -> Result<Home> {
        let cgroup = ctx.holder_cgroup(&format!("hold-{name}"))?;
        let (mut family, zygote, region) = ctx.zygote(PAGES, &cgroup)?;
        let holder = family.fork(&zygote)?;
        host::drain_page_batches()?;
        ctx.device()
            .template_add_in(name, domain, holder.pid, &[region.range()])
            .with_context(|| format!("register template {name}"))?;
        // From then on what a page becomes depends on nothing but the page.
        module::wait_indexed(name)?;
        Ok(Home {
            name,
            domain,
            family,
            zygote,
            _holder: holder,
        })
    }
}

/// A sandbox with a process and its pages.
struct Tenant {
    sandbox: Sandbox,
    puppet: Puppet,
    region: Region,
}

impl Tenant {
    fn new(ctx: &Ctx, name: &str, home: &mut Home) -> Result<Tenant> {
        let cgroup = ctx.cgroup(name)?;
        let id = ctx
            .device()
            .attach_in(cgroup.path(), home.name, home.domain)?;
        let mut tenant = Tenant {
            sandbox: Sandbox { cgroup, id },
            puppet: home.family.fork(&home.zygote)?,
            region: Region::new(5, PAGES),
        };
        // It does everything once before it enters. So stack and heap, in which times are, stay with the
        // zygote's, which do not swap, and the sandbox stores its pages alone.
        let puppet = &tenant.puppet;
        puppet.map(&tenant.region)?;
        puppet.write(&mut tenant.region, |page| Some(guess(page)))?;
        puppet.time_touches(&tenant.region)?;
        puppet.check(&tenant.region)?;
        tenant.forget()?;
        tenant.sandbox.cgroup.enter(tenant.puppet.pid)?;
        Ok(tenant)
    }

    /// Has these pages stored.
    fn store(&mut self, spec: impl Fn(usize) -> Spec) -> Result<()> {
        self.puppet
            .write(&mut self.region, |page| Some(spec(page)))?;
        page_out(&self.sandbox.cgroup, &self.puppet, &self.region)
    }

    /// Forgets its pages, and with them its entries.
    fn forget(&mut self) -> Result<()> {
        self.puppet.advise(&self.region, libc::MADV_DONTNEED)?;
        self.region.specs.fill(Spec::ZERO);
        Ok(())
    }

    /// Bytes of all its payloads.
    fn bytes(&self) -> Result<u64> {
        Ok(self.sandbox.counters()?.sum("bytes_"))
    }
}

/// What the curious tenant saw.
#[derive(Default)]
struct Seen {
    /// Bytes of its pages, by round.
    bytes: Vec<u64>,
    /// Nanoseconds for each page that the victim has as well, and for each that it has not.
    times: [Vec<f64>; 2],
}

/// What the curious one guesses: the same in all rounds.
fn guess(page: usize) -> Spec {
    Spec::new(Kind::Heap, 7_000_000 + page as u32)
}

/// So many rounds of `guess`, which is told whether the victim has it.
fn look(
    victim: &mut Tenant,
    curious: &mut Tenant,
    rounds: usize,
    guess: impl Fn(usize, bool) -> Spec,
) -> Result<Seen> {
    let mut rng = Rng::new(11);
    let mut seen = Seen::default();
    for round in 0..rounds {
        let coins: Vec<bool> = (0..PAGES).map(|_| rng.next() & 1 == 0).collect();
        let others = |page: usize| Spec::new(Kind::Heap, (8_000_000 + round * 1000 + page) as u32);
        victim.store(|page| match coins[page] {
            true => guess(page, true),
            false => others(page),
        })?;
        curious.store(|page| guess(page, coins[page]))?;
        seen.bytes.push(curious.bytes()?);
        let times = curious.puppet.time_touches(&curious.region)?;
        curious.puppet.check(&curious.region)?;
        victim.puppet.check(&victim.region)?;
        for (time, coin) in times.into_iter().zip(coins) {
            seen.times[usize::from(!coin)].push(time);
        }
        curious.forget()?;
        victim.forget()?;
    }
    Ok(seen)
}

/// The rank-sum statistic of Mann and Whitney for two sets of values, as the number of standard deviations
/// from what is expected of one distribution. Equal values share their ranks.
fn rank_sum(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> = a.iter().map(|value| (*value, true)).collect();
    all.extend(b.iter().map(|value| (*value, false)));
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (n, m) = (a.len() as f64, b.len() as f64);
    let (mut ranks, mut ties) = (0.0, 0.0);
    let mut first = 0;
    for run in all.chunk_by(|x, y| x.0 == y.0) {
        let count = run.len() as f64;
        let rank = first as f64 + (count + 1.0) / 2.0;
        ranks += rank * run.iter().filter(|(_, of_a)| *of_a).count() as f64;
        ties += count * count * count - count;
        first += run.len();
    }
    let total = n + m;
    let mean = n * (total + 1.0) / 2.0;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    (ranks - mean) / variance.sqrt().max(f64::MIN_POSITIVE)
}

/// The median.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Says what was seen; returns the z of the times.
fn told(seen: &Seen, what: &str) -> f64 {
    let [with, without] = &seen.times;
    let z = rank_sum(with, without);
    println!(
        "# {what}: {} and {} samples, median {:.0} and {:.0} ns, z {z:.2}; {} bytes at first",
        with.len(),
        without.len(),
        median(with),
        median(without),
        seen.bytes.first().copied().unwrap_or(0)
    );
    z
}

fn other_domain_shows_nothing(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut red = Home::new(ctx, "red", Some("red"))?;
    let mut blue = Home::new(ctx, "blue", Some("blue"))?;
    let mut victim = Tenant::new(ctx, "victim", &mut red)?;
    let mut curious = Tenant::new(ctx, "curious", &mut blue)?;
    let seen = look(&mut victim, &mut curious, ROUNDS, |page, _| guess(page))?;
    let z = told(&seen, "another domain");
    let first = seen.bytes[0];
    ensure!(
        first > 0 && seen.bytes.iter().all(|bytes| *bytes == first),
        "the same pages take other numbers of bytes: {:?}",
        seen.bytes
    );
    ensure!(
        z.abs() < SAME,
        "times to come back differ for pages that a victim in another domain has as well: z {z:.2}"
    );
    for tenant in [&victim, &curious] {
        let shared = tenant.sandbox.counters()?.get("promoted")?;
        ensure!(shared == 0, "{shared} pages were promoted");
    }
    Ok(())
}

fn same_group_shows_sizes(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut home = Home::new(ctx, "red", None)?;
    let mut victim = Tenant::new(ctx, "victim", &mut home)?;
    let mut curious = Tenant::new(ctx, "curious", &mut home)?;
    let seen = look(&mut victim, &mut curious, FEW, |page, _| guess(page))?;
    told(&seen, "the same group");
    let (least, most) = (seen.bytes.iter().min(), seen.bytes.iter().max());
    ensure!(
        least < most,
        "{least:?} bytes in each round: nothing is shared in a group"
    );
    Ok(())
}

/// Pages of one repeated word and others take different times.
fn times_can_be_told_apart(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut red = Home::new(ctx, "red", Some("red"))?;
    let mut blue = Home::new(ctx, "blue", Some("blue"))?;
    let mut victim = Tenant::new(ctx, "victim", &mut red)?;
    let mut curious = Tenant::new(ctx, "curious", &mut blue)?;
    let seen = look(&mut victim, &mut curious, FEW, |page, fill| match fill {
        true => Spec::new(Kind::Fill, page as u32),
        false => guess(page),
    })?;
    let z = told(&seen, "pages of two kinds");
    ensure!(z.abs() > DIFFERENT, "not told apart: z {z:.2}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let values = |from: u32, to: u32| (from..to).map(f64::from).collect::<Vec<_>>();
        // Odd and even numbers: of one distribution.
        let odd: Vec<f64> = (0..500).map(|i| f64::from(2 * i + 1)).collect();
        let even: Vec<f64> = (0..500).map(|i| f64::from(2 * i)).collect();
        assert!(rank_sum(&odd, &even).abs() < 0.2);
        assert!(rank_sum(&values(0, 500), &values(400, 900)) < -20.0);
        assert!(rank_sum(&values(400, 900), &values(0, 500)) > 20.0);
        // By hand: ranks 1, 2.5, 2.5, 4 with the first and the last of them in one set.
        let z = rank_sum(&[1.0, 3.0], &[2.0, 2.0]);
        assert_eq!(z, 0.0);
        assert_eq!(rank_sum(&[5.0; 3], &[5.0; 4]), 0.0);
    }
}
