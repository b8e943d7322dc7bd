//! Repair: a leader compares what the sstable servers hold with its manifest. A server that lacks a table (it was down, or
//! lost its disk) copies it from another one; a server that does not come back, or that an operator wants empty, is replaced, table
//! by table; copies that nobody needs go, by id, after a grace. What is copied where, and what is not needed: [`placement`].
//!
//! A table moves in three steps: the new server copies it and says so; a command in the log names it, instead of the old one; the
//! old one *releases* its copy. Orders carry numbers, which servers remember: a deposed leader's late release is refused.
//!
//! Invariants: a server is named when it has the table. Nothing is released that the manifest, a cut, or a change of this leader that may
//! still be committed, names. Nothing is deleted as an orphan unless, by the inventories of the same round, every table of the manifest is
//! sound on as many servers as a new table has to be, and on each server that answers and is to have it. As long as copies are missing,
//! what nobody names may be the last that holds a record (the inputs of a compaction, for one).

mod placement;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use sextant_common::command::{Placement, Relocation};
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::{NodeId, SstId};
use sextant_common::manifest::{Manifest, SstMeta};
use sextant_environment::shutdown::Shutdown;
use tokio::sync::{mpsc, oneshot};

use self::placement::{Copying, Found, Naming, is_sound};
use super::Background;
use crate::partition::view::ReadView;
use crate::replica::Event;
use crate::upstream::{Held, SstServer};

/// Copies started per server and round: repair must not starve service.
const COPIES_PER_ROUND: usize = 8;
/// No copy is begun after this time of a round.
const TURN: Duration = Duration::from_secs(20);
/// A round in which any server has done what it was to do ends here: what others are at goes on from where it was when it is asked for
/// again. That is later, as long as there are servers that do better.
const ROUND: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(30) };
/// How long a command may take into the log and back.
const COMMAND: Duration = Duration::from_secs(10);

/// What a leader remembers from round to round.
#[derive(Default)]
struct Memory {
    /// The term that all of this is of.
    term: u64,
    /// Tables that nobody names, and since when.
    orphans: HashMap<(NodeId, SstId), u64>,
    /// Copies that the manifest does not name, of tables that it names, and since when.
    surplus: HashMap<(NodeId, SstId), u64>,
    /// Servers that do not answer, and since when.
    silent: HashMap<NodeId, u64>,
    /// Of another lineage, by server.
    foreign: HashMap<NodeId, usize>,
    /// Servers that a proposed change names, whose outcome is not known: it may be committed as long as the term lasts.
    proposed: BTreeSet<(NodeId, SstId)>,
    /// No copies before this time: what was copied last is to be no faster than the configuration says.
    rests_until_ns: u64,
    /// This leader does not serve since then.
    rests_since_ns: Option<u64>,
    /// For how many tables' copies a new server waited in the round before, by server. None of one: there was none.
    lacking: HashMap<NodeId, u32>,
}

/// Runs until shutdown, one partition replica each; does something only while it leads and serves.
pub async fn repair_loop(background: Background, mut shutdown: Shutdown) {
    let interval = Duration::from_millis(background.tuning.repair_interval_ms.max(10));
    let mut memory = Memory::default();
    let tell_nothing = || {
        background.metrics.set_tables_lacking(background.shared.id, 0);
        background.metrics.set_tables_crowded(background.shared.id, 0);
    };
    tell_nothing();
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(interval) => {}
        }
        // (What was proposed may be committed although a lease has lapsed meanwhile: it is remembered for the term.)
        let Some(term) = background.shared.serving() else {
            tell_nothing();
            memory.lacking.clear();
            memory.rests_since_ns.get_or_insert_with(|| background.shared.env.clock.grantor_ns());
            continue;
        };
        if memory.term != term {
            memory = Memory { term, ..Memory::default() };
        }
        memory.goes_on(background.shared.env.clock.grantor_ns());
        round(&background, &mut memory).await;
    }
}

/// What the servers that answer hold.
async fn inventories<'b>(
    background: &'b Background,
    memory: &mut Memory,
) -> Vec<(&'b SstServer, Option<Vec<Held>>)> {
    // It is said once: a round that comes to no end finds out nothing.
    let (term, lacking) = (memory.term, std::mem::take(&mut memory.lacking));
    let asked = background.servers.all().iter().map(|server| (server, lacking.get(&server.id).copied()));
    let asked = asked.map(|(server, lacking)| async move {
        let wall_ns = background.shared.env.clock.wall_guess_ns();
        match server.inventory(background.shared.id, background.order(term), wall_ns, lacking).await {
            Ok(mut held) => {
                held.sort_by_key(|table| table.id);
                (server, Some(held))
            }
            Err(e) => {
                tracing::debug!("sstable server {}: inventory: {e}", server.id);
                (server, None)
            }
        }
    });
    futures::future::join_all(asked).await
}

async fn round(background: &Background, memory: &mut Memory) {
    let (term, shared) = (memory.term, &background.shared);
    let inventories = inventories(background, memory).await;
    // The manifest is taken after the inventories, so that a table which was flagged in between is not taken for an orphan.
    if shared.serving() != Some(term) {
        return;
    }
    let view = shared.view.load_full();
    let manifest = view.versions.newest.clone();
    let now = shared.env.clock.grantor_ns();
    let found = memory.find(background, &inventories, now);
    tell_placement(background, &manifest, &found);
    memory.lacking = waited_for(&manifest, &found, background.tuning.sst_replicas);
    let held: Vec<(NodeId, &[Held])> = found.iter().filter_map(|s| Some((s.id, s.held?))).collect();
    let may_delete = all_copies_are_there(&manifest, &held, background.tuning.sst_replicas_required);
    for (server, held) in &inventories {
        let Some(held) = held else { continue };
        tell_of_foreign(background, server, held, &mut memory.foreign);
        let gone = judge_orphans(background, server.id, term, held, &mut memory.orphans, now);
        if may_delete && !gone.is_empty() {
            let lineage = shared.configuration.load().lineage;
            match server.delete(&gone, lineage).await {
                Ok(()) => memory.orphans.retain(|(s, id), _| *s != server.id || !gone.contains(id)),
                Err(e) => tracing::debug!("sstable server {}: delete: {e}", server.id),
            }
        }
    }
    memory.release(background, &view, &found, now).await;
    // After that: copies take their time, and what was judged above would be old.
    if shared.serving() == Some(term) && now >= memory.rests_until_ns {
        memory.copy(background, &manifest, &found).await;
    }
}

impl Memory {
    /// While nobody was asked nobody was silent.
    fn goes_on(&mut self, now: u64) {
        let Some(since) = self.rests_since_ns.take() else { return };
        let rested_ns = now.saturating_sub(since);
        self.silent
            .values_mut()
            .for_each(|silent_since| *silent_since = silent_since.saturating_add(rested_ns));
    }

    fn find<'h>(
        &mut self,
        background: &Background,
        inventories: &'h [(&'h SstServer, Option<Vec<Held>>)],
        now: u64,
    ) -> Vec<Found<'h>> {
        let configuration = background.shared.configuration.load();
        let patience_ns = match background.tuning.sst_lost_after_ms {
            0 => u64::MAX,
            ms => ms.saturating_mul(1_000_000),
        };
        let failing = background.failing();
        let found = inventories.iter().map(|(server, held)| {
            let is_lost = match held {
                Some(_) => {
                    if self.silent.remove(&server.id).is_some() {
                        background.shared.failing_ssts.lock().remove(&server.id);
                    }
                    false
                }
                None => {
                    let since = *self.silent.entry(server.id).or_insert(now);
                    now.saturating_sub(since) >= patience_ns
                }
            };
            let is_draining = configuration.draining.contains(&server.id.0);
            Found {
                id: server.id,
                zone: server.zone(),
                held: held.as_deref(),
                is_lost,
                is_draining,
                is_failing: failing.contains(&server.id),
            }
        });
        let found: Vec<Found<'_>> = found.collect();
        // New tables go elsewhere, as long as there are enough others.
        let avoided = found.iter().filter(|s| s.held.is_none() || s.is_draining).map(|s| s.id);
        *background.shared.avoided_ssts.lock() = avoided.collect();
        found
    }

    /// Has servers release copies that they are no longer to have, after the grace: p-nodes with an older manifest may read them.
    async fn release(&mut self, background: &Background, view: &ReadView, found: &[Found<'_>], now: u64) {
        let gathered = background.shared.gathered_ssts.lock().clone();
        let in_use = |server, id| {
            let is_wanted = self.proposed.contains(&(server, id)) || gathered.contains(&(server, id));
            is_wanted || view.cuts.iter().any(|cut| cut.names_at(id, server))
        };
        let required = background.tuning.sst_replicas_required;
        let surplus: BTreeSet<_> =
            placement::surplus(&view.versions.newest, found, required, in_use).into_iter().collect();
        self.surplus.retain(|copy, _| surplus.contains(copy));
        let grace_ns = background.tuning.sst_delete_grace_ms * 1_000_000;
        let mut due: HashMap<NodeId, Vec<SstId>> = HashMap::new();
        for (server, id) in surplus {
            if now.saturating_sub(*self.surplus.entry((server, id)).or_insert(now)) >= grace_ns {
                due.entry(server).or_default().push(id);
            }
        }
        let lineage = background.shared.configuration.load().lineage;
        for server in background.servers.all() {
            let Some(ids) = due.get(&server.id) else { continue };
            match server.release(ids, lineage, background.order(self.term)).await {
                Ok(released) => {
                    background.metrics.tables_released.inc_by(released);
                    self.surplus.retain(|(s, id), _| *s != server.id || !ids.contains(id));
                }
                Err(e) => tracing::debug!("sstable server {}: release: {e}", server.id),
            }
        }
    }

    /// Has servers copy what they are to have, and names those that are not named yet.
    async fn copy(&mut self, background: &Background, manifest: &Manifest, found: &[Found<'_>]) {
        let mut by_server: BTreeMap<NodeId, Vec<Copying<'_>>> = BTreeMap::new();
        for copying in placement::copies(manifest, found, background.tuning.sst_replicas) {
            let of_server = by_server.entry(copying.to).or_default();
            if of_server.len() < COPIES_PER_ROUND {
                of_server.push(copying);
            }
        }
        // Who has failed or was slow lately may be so for long, and the others would wait for it in each round.
        let is_failing = |id: &NodeId| found.iter().any(|s| s.id == *id && s.is_failing);
        if !by_server.keys().all(is_failing) {
            by_server.retain(|id, _| !is_failing(id));
        }
        let term = self.term;
        let done = all_copy(background, term, found, by_server).await;
        let mut relocations = placement::departures(manifest, found, background.tuning.sst_replicas);
        // (What was there already has cost nothing.)
        let had = |sst: &SstMeta, to| {
            found.iter().any(|s| s.id == to && s.held.is_some_and(|held| is_sound(held, sst)))
        };
        let mut bytes = 0u64;
        for Copying { sst, to, naming } in done {
            bytes += if had(sst, to) { 0 } else { sst.file_bytes };
            let remove = match naming {
                Naming::Named => continue,
                Naming::Added => None,
                Naming::InsteadOf(old) => Some(old),
            };
            relocations.push(Relocation { id: sst.id, add: Some(to), remove });
        }
        if bytes > 0 {
            let rate = background.tuning.repair_bytes_per_second.max(1);
            let rest_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
            let now = background.shared.env.clock.grantor_ns();
            self.rests_until_ns = now.saturating_add(u64::try_from(rest_ns).unwrap_or(u64::MAX));
        }
        if !relocations.is_empty() {
            self.name(background, relocations).await;
        }
    }

    /// Names servers that have copied.
    async fn name(&mut self, background: &Background, mut relocations: Vec<Relocation>) {
        let manifest = background.shared.manifest();
        // (The table may have been compacted away meanwhile.)
        let named: HashSet<SstId> = manifest.all_ssts().map(|sst| sst.id).collect();
        relocations.retain(|r| named.contains(&r.id));
        if relocations.is_empty() || background.shared.serving() != Some(self.term) {
            return;
        }
        let named: Vec<_> = relocations.iter().filter_map(|r| Some((r.add?, r.id))).collect();
        self.proposed.extend(&named);
        let count = relocations.len() as u64;
        let placement = Placement { term: self.term, version: manifest.version, relocations };
        let (done, told) = oneshot::channel();
        let _ = background.events.send(Event::Place { placement, done });
        match tokio::time::timeout(COMMAND, told).await {
            // It took effect, or the manifest has changed since, and it never will.
            Ok(Ok(Ok(()))) => {
                self.proposed.retain(|copy| !named.contains(copy));
                background.metrics.tables_moved.inc_by(count);
            }
            Ok(Ok(Err(e))) => {
                if was_never_proposed(&e) {
                    self.proposed.retain(|copy| !named.contains(copy));
                }
                tracing::debug!("tables are not elsewhere yet: {e}");
            }
            Ok(Err(_)) | Err(_) => {
                tracing::debug!("tables are not elsewhere yet: nobody said what became of it")
            }
        }
    }
}

/// Whether a change that was refused for this is in no log. (After a change of leaders it may be.)
fn was_never_proposed(e: &Error) -> bool {
    matches!(e.kind, ErrorKind::Overloaded | ErrorKind::NotLeader)
}

/// All servers copy, each its own one after the other. What was done when the round has to go on: a server that is slow, or hangs, holds
/// up no other one's.
async fn all_copy<'m>(
    background: &Background,
    term: u64,
    found: &[Found<'_>],
    by_server: BTreeMap<NodeId, Vec<Copying<'m>>>,
) -> Vec<Copying<'m>> {
    let clock = &background.shared.env.clock;
    let started_ns = clock.grantor_ns();
    let so_far = || Duration::from_nanos(clock.grantor_ns().saturating_sub(started_ns));
    let (copied, mut all) = mpsc::unbounded_channel();
    let mut at_it: BTreeSet<NodeId> = by_server.keys().copied().collect();
    let servers = by_server.into_iter().map(|(to, copies)| {
        let (copied, so_far) = (copied.clone(), &so_far);
        async move {
            let is_through = copy_to(background, term, found, copies, &copied, so_far).await;
            (to, is_through)
        }
    });
    let mut working: FuturesUnordered<_> = servers.collect();
    let mut somebody_is_through = false;
    while !at_it.is_empty() {
        let next = match somebody_is_through {
            false => working.next().await,
            true => {
                let left = ROUND.saturating_sub(so_far());
                tokio::time::timeout(left, working.next()).await.unwrap_or_default()
            }
        };
        let Some((to, is_through)) = next else { break };
        at_it.remove(&to);
        somebody_is_through |= is_through;
    }
    at_it.iter().for_each(|straggler| background.failed(*straggler));
    drop(working);
    std::iter::from_fn(|| all.try_recv().ok()).collect()
}

/// One server copies these, one after the other. False: there were some, and it could copy none.
async fn copy_to<'m>(
    background: &Background,
    term: u64,
    found: &[Found<'_>],
    copies: Vec<Copying<'m>>,
    copied: &mpsc::UnboundedSender<Copying<'m>>,
    so_far: impl Fn() -> Duration,
) -> bool {
    let (mut did, mut failed) = (false, false);
    for copying in copies {
        let Copying { sst, to, .. } = copying;
        let Some(server) = background.servers.get(to) else { continue };
        if background.shared.serving() != Some(term) || so_far() >= TURN {
            break;
        }
        let has = |s: &&Found<'_>| s.id != to && s.held.is_some_and(|held| is_sound(held, sst));
        // Who answers and has it; then those that the manifest names, whatever they say.
        let sound = found.iter().filter(has).map(|s| s.id);
        let named = sst.replicas.iter().copied().filter(|id| *id != to);
        let mut sources: Vec<NodeId> = sound.collect();
        named.for_each(|id| {
            if !sources.contains(&id) {
                sources.push(id)
            }
        });
        let addresses = sources.iter().filter_map(|id| background.servers.get(*id)).map(|s| s.addr.clone());
        match server.copy(sst, addresses.collect(), background.order(term)).await {
            Ok(()) => {
                tracing::info!("sstable server {to} has copied table {}", sst.id);
                did = true;
                let _ = copied.send(copying);
            }
            Err(e) => {
                failed = true;
                background.failed(to);
                tracing::warn!("sstable server {to} cannot copy table {}: {e}", sst.id);
            }
        }
    }
    did || !failed
}

/// For metrics.
fn tell_placement(background: &Background, manifest: &Manifest, found: &[Found<'_>]) {
    let lacking = lacking(manifest, found, background.tuning.sst_replicas);
    background.metrics.set_tables_lacking(background.shared.id, lacking);
    background.metrics.set_tables_crowded(background.shared.id, placement::crowded(manifest, found));
}

/// How many tables have fewer sound copies than that.
fn lacking(manifest: &Manifest, found: &[Found<'_>], replicas: usize) -> usize {
    manifest.all_ssts().filter(|sst| sound_copies(found, sst) < replicas).count()
}

/// How many of these each server waits for, if it is new.
fn waited_for(manifest: &Manifest, found: &[Found<'_>], replicas: usize) -> HashMap<NodeId, u32> {
    let of = |asking: Option<NodeId>| u32::try_from(waited_for_by(asking, manifest, found, replicas)).ok();
    let of_any = of(None);
    let told = |server: &Found<'_>| {
        let count = if server.is_failing { of(Some(server.id)) } else { of_any };
        Some((server.id, count?))
    };
    found.iter().filter_map(told).collect()
}

/// No more copies are asked for than there are servers that can have one: not those that are lost, nor those that lack the table and
/// could not do what they were asked, lately. (`asking` waits for itself all the same.) But a table that is sound nowhere is waited for
/// as long as anybody is silent who may have it, however long that is: who is gone for good is taken out of the configuration. If nobody
/// is silent, nobody can copy it.
fn waited_for_by(asking: Option<NodeId>, manifest: &Manifest, found: &[Found<'_>], replicas: usize) -> usize {
    let is_silent = |server: &Found<'_>| server.held.is_none() && !server.is_lost;
    let somebody_is_away = found.iter().any(|server| server.held.is_none());
    let can_have = |server: &Found<'_>, sst: &SstMeta| match server.held {
        None => is_silent(server),
        Some(held) => !server.is_failing || asking == Some(server.id) || is_sound(held, sst),
    };
    let is_waited_for = |sst: &&SstMeta| match sound_copies(found, sst) {
        0 => somebody_is_away,
        copies if copies >= replicas => false,
        copies => copies < found.iter().filter(|server| can_have(server, sst)).count(),
    };
    manifest.all_ssts().filter(is_waited_for).count()
}

fn sound_copies(found: &[Found<'_>], sst: &SstMeta) -> usize {
    found.iter().filter(|server| server.held.is_some_and(|held| is_sound(held, sst))).count()
}

/// Whether every table of the manifest is sound on at least `required` servers. A server that does not answer (it may never again)
/// is not in `inventories`, and does not count. (More is not asked for: a server that cannot copy because its disk is full of
/// orphans would keep them for ever.)
fn all_copies_are_there(manifest: &Manifest, inventories: &[(NodeId, &[Held])], required: usize) -> bool {
    manifest.all_ssts().all(|sst| {
        let sound = inventories.iter().filter(|(_, held)| is_sound(held, sst)).count();
        sound >= required.min(sst.replicas.len()).max(1)
    })
}

/// Says so, once, if a server has tables of the partition that another founding of it made: nobody here can know what they are worth.
fn tell_of_foreign(
    background: &Background,
    server: &SstServer,
    held: &[Held],
    foreign: &mut HashMap<NodeId, usize>,
) {
    let lineage = background.shared.configuration.load().lineage;
    let count = held.iter().filter(|table| table.lineage.is_some_and(|l| l != lineage)).count();
    if foreign.insert(server.id, count).unwrap_or(0) != count && count > 0 {
        tracing::error!(
            partition = %background.shared.id,
            "sstable server {} holds {count} tables of another lineage: the partition was founded more than once. They are left \
             alone, and not read",
            server.id
        );
    }
}

/// By the manifest, or by a cut.
fn named(view: &ReadView) -> HashSet<SstId> {
    let of_cuts = view.cuts.iter().flat_map(|cut| cut.ssts());
    view.versions.newest.all_ssts().chain(of_cuts).map(|sst| sst.id).collect()
}

/// Tables that no manifest and no cut names, and nobody is about to add, and that have been so for the grace: they may be deleted.
fn judge_orphans(
    background: &Background,
    server: NodeId,
    term: u64,
    held: &[Held],
    orphans: &mut HashMap<(NodeId, SstId), u64>,
    now: u64,
) -> Vec<SstId> {
    let grace = background.tuning.sst_delete_grace_ms * 1_000_000;
    // First what is pending, then the manifest: a table that is flagged in between is in one of the two.
    let pending = background.shared.pending_ssts.lock().clone();
    let named = named(&background.shared.view.load());
    let lineage = background.shared.configuration.load().lineage;
    let mut gone = Vec::new();
    for table in held {
        // Never a table of a newer epoch: a leader that was paused must not erase its successors' work.
        // Nor one of another history, of which this leader's manifest says nothing.
        let orphan = table.id.epoch.term <= term
            && table.lineage.is_none_or(|of_table| of_table == lineage)
            && !pending.contains(&table.id)
            && !named.contains(&table.id);
        if !orphan {
            orphans.remove(&(server, table.id));
            continue;
        }
        let since = *orphans.entry((server, table.id)).or_insert(now);
        if now.saturating_sub(since) >= grace {
            gone.push(table.id);
        }
    }
    // What somebody else had deleted is nobody's orphan.
    let still_held: HashSet<SstId> = held.iter().map(|table| table.id).collect();
    orphans.retain(|(at, id), _| *at != server || still_held.contains(id));
    gone
}

#[cfg(test)]
pub(crate) mod tests;
