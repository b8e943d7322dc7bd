//! Faults come into force and are taken back.

use sextant_common::error::{Error, Result};

use crate::fault::{Fault, Kind, filters};
use crate::host::memory;
use crate::host::shim::Sync;
use crate::server::Id;
use crate::testbed::Testbed;

/// Brings faults into force, in their order.
pub async fn apply(bed: &mut Testbed, faults: &[Fault]) -> Result<()> {
    for fault in faults {
        apply_one(bed, fault).await.map_err(|e| Error::new(e.kind, format!("{fault}: {}", e.message)))?;
    }
    let all: Vec<&Fault> = faults.iter().collect();
    let filters = filters(&all, |id| bed.address(id));
    bed.filter(filters).await
}

/// Takes them back. Servers that do not run are started again; this does not wait until they are ready.
pub async fn heal(bed: &mut Testbed, faults: &[Fault]) -> Result<()> {
    bed.filter(Default::default()).await?;
    for fault in faults {
        heal_one(bed, fault).await.map_err(|e| Error::new(e.kind, format!("heal {fault}: {}", e.message)))?;
    }
    Ok(())
}

async fn apply_one(bed: &mut Testbed, fault: &Fault) -> Result<()> {
    match fault {
        Fault::Kill { servers, .. } => {
            for id in servers {
                kill(bed, *id).await?;
            }
            Ok(())
        }
        Fault::Clocks { server } => kill(bed, *server).await,
        Fault::Wipe { kind, server } => wipe(bed, *kind, *server).await,
        Fault::Pause { server } => bed.cluster.pause(server.role, server.index).await,
        Fault::Cut { .. } | Fault::Isolate { .. } | Fault::Loss { .. } => Ok(()),
        Fault::LinkDown { server } => bed.link(*server, false).await,
        Fault::SlowLink { server, kilobits } => bed.rate(*server, Some(*kilobits)).await,
        Fault::DiskFull { server } => bed.volume(*server)?.fill(),
        Fault::DiskHung { server } => bed.sync(*server, Sync::Hang),
        Fault::DiskFrozen { server } => bed.volume(*server)?.freeze().await,
        Fault::DiskSlow { server, ms } => bed.sync(*server, Sync::Slow(*ms)),
        Fault::DiskThrottled { server, bytes } => bed.throttle(*server, *bytes),
        Fault::FsyncFails { server } => bed.sync(*server, Sync::Fail),
    }
}

async fn heal_one(bed: &mut Testbed, fault: &Fault) -> Result<()> {
    match fault {
        Fault::Kill { servers, .. } => {
            for id in servers {
                bed.cluster.relaunch(id.role, id.index).await?;
            }
            Ok(())
        }
        Fault::Clocks { server } => bed.cluster.relaunch(server.role, server.index).await,
        Fault::Wipe { server, .. } => match bed.cluster.pid(server.role, server.index)? {
            None => bed.cluster.relaunch(server.role, server.index).await,
            // It was left alone.
            Some(_) => Ok(()),
        },
        Fault::Pause { server } => bed.cluster.resume(server.role, server.index).await,
        Fault::Cut { .. } | Fault::Isolate { .. } | Fault::Loss { .. } => Ok(()),
        Fault::LinkDown { server } => bed.link(*server, true).await,
        Fault::SlowLink { server, .. } => bed.rate(*server, None).await,
        Fault::DiskFull { server } => bed.volume(*server)?.free(),
        Fault::DiskHung { server } | Fault::DiskSlow { server, .. } => bed.sync(*server, Sync::Normal),
        Fault::DiskFrozen { server } => bed.volume(*server)?.thaw().await,
        Fault::DiskThrottled { server, .. } => bed.throttle(*server, 0),
        Fault::FsyncFails { server } => {
            bed.sync(*server, Sync::Normal)?;
            match bed.cluster.ended(server.role, server.index)? {
                Some(_) => bed.cluster.relaunch(server.role, server.index).await,
                // It had nothing to write meanwhile.
                None => Ok(()),
            }
        }
    }
}

/// Only while every other memtable server is a voter that has its memory; otherwise nothing is done.
async fn wipe(bed: &mut Testbed, kind: Kind, id: Id) -> Result<()> {
    if !bed.others_stand(id).await {
        println!("            {} {id}: left alone, the others do not all stand", kind.name());
        return Ok(());
    }
    kill(bed, id).await?;
    bed.wiped(kind, id);
    let dir = bed.data_dir(id);
    let done = match kind {
        Kind::WipeLog => memory::empty(&dir.join("log")),
        Kind::WipeData => memory::empty_files(&dir),
        Kind::OlderCopy => memory::put_back(&dir, &memory::copy_of(&dir)),
        _ => memory::empty(&dir),
    };
    Ok(done?)
}

async fn kill(bed: &mut Testbed, id: Id) -> Result<()> {
    // One that has ended by itself is as dead as one that is killed; who watches has seen it.
    match bed.cluster.ended(id.role, id.index)? {
        Some(_) => Ok(()),
        None => bed.cluster.kill(id.role, id.index).await,
    }
}
