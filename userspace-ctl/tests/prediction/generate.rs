// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes traces after the model of qemu-test/workload: Python agents, forked from a zygote, that run tools.
//!
//! A turn touches: pages of the interpreter and its libraries that every turn writes (reference counts);
//! pages of the tool, in an order that hardly changes; pages of the sandbox's own heap, another selection
//! in each sandbox; the history, read from its beginning to its end, which grew in the turn before; a
//! sequential pass over a data frame that only some turns make; and noise. Pages of a set are touched
//! with a probability of their own.

use std::collections::BTreeSet;

use agentzip_ctl::predict::trace::{Event, Fault, Mapped, Trace, TraceTurn};

/// What is generated.
pub struct Model {
    pub seed: u64,
    pub sandboxes: u32,
    pub turns: usize,
    /// Multiplies the sizes of all sets: 1 makes about 560 pages a turn.
    pub scale: f64,
    /// Tools in the order in which agents mostly use them, for turns from the given one on.
    pub tools: Vec<(usize, Vec<&'static str>)>,
    /// Pages of the pass over a data frame, and the share of the turns that make one.
    pub scan: (u64, f64),
    /// Share of the touches that are noise.
    pub noise: f64,
}

/// A generator of numbers: the same ones for the same seed, everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// Pages of a process that exist.
const HEAP: (u64, u64) = (0x5_5d3a_1c00, 2400);
const LIBRARIES: (u64, u64) = (0x7_f31c_0000, 3000);
const ARENAS: (u64, u64) = (0x7_f320_0000, 3000);
const HISTORY: (u64, u64) = (0x7_f330_0000, 1200);
const FRAMES: (u64, u64) = (0x7_f340_0000, 2000);

/// Pages in the order in which they are touched, with the probability of each.
type Set = Vec<(u64, f64)>;

/// Clusters of 1 to 9 neighbours in a region, in any order, until there are so many pages.
fn clusters(random: &mut Random, region: (u64, u64), pages: f64) -> Set {
    let mut set = Set::new();
    let mut known = BTreeSet::new();
    while (set.len() as f64) < pages {
        let start = region.0 + random.below(region.1 - 10);
        let probability = match random.below(20) {
            0..15 => 0.97,
            15..18 => 0.85,
            _ => 0.4,
        };
        for page in start..start + 1 + random.below(9) {
            if known.insert(page) {
                set.push((page, probability));
            }
        }
    }
    set
}

struct Agent {
    own: Set,
    /// Pages of the heap for each tool.
    own_tool: Vec<(&'static str, Set)>,
    history: u64,
    frames: u64,
    last: usize,
}

pub fn trace(model: &Model, source: &str) -> Trace {
    let mut random = Random::new(model.seed);
    let scale = model.scale;
    let core = clusters(&mut random, LIBRARIES, 160.0 * scale);
    let mut names: Vec<&'static str> = Vec::new();
    for name in model.tools.iter().flat_map(|(_, names)| names) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let tools: Vec<(&'static str, Set)> = names
        .iter()
        .map(|name| (*name, clusters(&mut random, ARENAS, 170.0 * scale)))
        .collect();
    let mut agents: Vec<Agent> = (0..model.sandboxes)
        .map(|_| Agent {
            own: clusters(&mut random, HEAP, 90.0 * scale),
            own_tool: names
                .iter()
                .map(|name| (*name, clusters(&mut random, HEAP, 30.0 * scale)))
                .collect(),
            history: 10 + random.below(10),
            frames: 0,
            last: random.below(16) as usize,
        })
        .collect();
    let mut turns = Vec::new();
    for number in 0..model.turns {
        for (sandbox, agent) in agents.iter_mut().enumerate() {
            let known = model.tools.iter().rev().find(|(from, _)| *from <= number);
            let order = known.map_or(&[][..], |(_, names)| names);
            // Mostly the next one in the order.
            agent.last = match random.chance(0.75) {
                true => agent.last + 1,
                false => random.below(16) as usize,
            };
            let tool = order[agent.last % order.len()];
            let set = tools.iter().find(|t| t.0 == tool).map(|t| &t.1).unwrap();
            turns.push(TraceTurn {
                sandbox: sandbox as u32,
                out: Vec::new(),
                events: turn(&mut random, model, agent, &core, tool, set),
                accessed: Vec::new(),
            });
        }
    }
    let region = |region: (u64, u64)| Mapped {
        role: 0,
        page: region.0,
        pages: region.1,
    };
    Trace {
        source: source.to_owned(),
        template: "python".parse().unwrap(),
        roles: vec![("python3".to_owned(), 0)],
        maps: [HEAP, LIBRARIES, ARENAS, HISTORY, FRAMES]
            .map(region)
            .to_vec(),
        turns,
    }
}

fn turn(
    random: &mut Random,
    model: &Model,
    agent: &mut Agent,
    core: &Set,
    tool: &'static str,
    set: &Set,
) -> Vec<Event> {
    let scale = model.scale;
    let mut faults: Vec<(u32, u64)> = Vec::new();
    let mut touch = |random: &mut Random, thread: u32, pages: &[(u64, f64)]| {
        let mut late: Option<u64> = None;
        for &(page, probability) in pages {
            if random.chance(model.noise) {
                let region = [HEAP, LIBRARIES, ARENAS][random.below(3) as usize];
                faults.push((thread, region.0 + random.below(region.1)));
            }
            if !random.chance(probability) {
                continue;
            }
            // Two in ten change places with the next.
            match late.take() {
                None if random.chance(0.2) => late = Some(page),
                None => faults.push((thread, page)),
                Some(before) => faults.extend([(thread, page), (thread, before)]),
            }
        }
        faults.extend(late.map(|page| (thread, page)));
    };
    touch(random, 0, &core[..core.len() / 2]);
    touch(random, 0, &agent.own);
    let own_tool = agent.own_tool.iter().find(|t| t.0 == tool);
    touch(random, 0, set);
    touch(random, 1, &core[core.len() / 2..]);
    touch(
        random,
        0,
        &own_tool.map(|t| t.1.clone()).unwrap_or_default(),
    );
    if agent.frames > 0 && random.chance(model.scan.1) {
        let start = random.below(agent.frames);
        let pages = model.scan.0.min(FRAMES.1 - start);
        faults.extend((start..start + pages).map(|page| (1, FRAMES.0 + page)));
    }
    faults.extend((0..agent.history).map(|page| (0, HISTORY.0 + page)));
    agent.history = (agent.history + 2 + random.below((4.0 * scale) as u64 + 1)).min(HISTORY.1);
    agent.frames = (agent.frames + model.scan.0).min(FRAMES.1 - 100);

    // A page faults once a turn.
    let mut known = BTreeSet::new();
    faults.retain(|fault| known.insert(fault.1));
    let begins = (core.len() / 2) as f64;
    let mut events = Vec::new();
    for (number, &(thread, page)) in faults.iter().enumerate() {
        if number == begins as usize / 2 {
            events.push(Event::Tool(100, Some(tool.parse().unwrap())));
        }
        let ms = match number < begins as usize / 2 {
            true => 0,
            false => 100 + number as u32 / 64 * 10,
        };
        events.push(Event::Fault(Fault {
            ms,
            role: 0,
            thread,
            page,
            write: false,
        }));
    }
    events
}
