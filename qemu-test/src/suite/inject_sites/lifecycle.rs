// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Arming, disarming, loading.

use anyhow::{bail, ensure, Context, Result};

use super::super::fixture::module;
use super::super::fixture::{host, trace, Ctx};
use super::super::inject::{is_enomem, nothing_loaded, unarmed};
use super::{Search, Which, PATIENCE, TEXT};

/// The hooks come and go, beside probes and another user of the functions.
pub fn arming(ctx: &Ctx, search: &mut Search) -> Result<()> {
    let device = ctx.device();
    device.disarm()?;
    // A probe takes memory when it is the second at its address, once.
    let probes: Vec<String> = trace::HOOKED.iter().map(|f| format!("p:{f} {f}")).collect();
    let probe_anew = || {
        trace::set("kprobe_events", "")?;
        trace::set("kprobe_events", &probes.join("\n"))
    };
    probe_anew()?;
    search.each_call(
        "arm",
        Which::Left,
        &[],
        || device.arm(),
        |()| Ok(device.disarm()?),
        || {
            unarmed()?;
            probe_anew()
        },
    )?;
    trace::set("kprobe_events", "")?;

    // The last hook is refused, so the others are undone.
    let last = "zswap_store";
    host::load_testmod(&format!("block={last}")).context("load the test module")?;
    search.each_call(
        "arm in vain",
        Which::Left,
        &[libc::EBUSY],
        || device.arm(),
        |()| bail!("armed beside another user of {last}"),
        || {
            let claimed = trace::claimed()?;
            ensure!(claimed == [last], "hooked: {claimed:?}");
            ensure!(module::value("armed")? == 0, "armed");
            Ok(())
        },
    )?;
    host::unload_testmod()?;

    device.arm()?;
    search.each_call(
        "disarm",
        Which::Left,
        &[],
        || device.disarm(),
        |()| Ok(device.arm()?),
        || Ok(()),
    )
}

/// The module is loaded, and is not. The test module stops each load when the code has its place.
pub fn loading(ctx: &mut Ctx, search: &mut Search) -> Result<()> {
    ctx.device().disarm()?;
    ctx.close_device();
    module::unload().context("unload")?;
    host::load_testmod("hold=agentzip").context("load the test module")?;
    search.each("load", Which::Left, |faults, site| {
        let (result, failed, text) = std::thread::scope(|scope| {
            let load = scope.spawn(|| module::load("selftest=1"));
            host::wait_until("the load should be stopped", PATIENCE, || {
                ensure!(!load.is_finished(), "the load was not stopped");
                Ok(host::testmod_number("held_text")? != 0)
            })?;
            let text = host::testmod_number("held_text")?;
            let base = match site.section.as_str() {
                TEXT => text,
                _ => host::testmod_number("held_init_text")?,
            };
            let failing = faults.at(base + site.offset)?;
            host::set_testmod_number("go", 1)?;
            let Ok(result) = load.join() else {
                bail!("the loading thread panicked");
            };
            Ok((result, failing.failed()?, text))
        })?;
        match result {
            Ok(()) => {
                let there = module::section(TEXT)?;
                ensure!(there == text, "{TEXT} is at {there:#x}, not at {text:#x}");
                module::unload().context("unload")?;
            }
            Err(e) if failed > 0 && is_enomem(&e) => {}
            Err(e) => return Err(e.into()),
        }
        nothing_loaded()?;
        Ok(failed)
    })?;
    host::unload_testmod()?;
    module::load("").context("load")?;
    ctx.open_device()?;
    Ok(ctx.device().arm()?)
}
