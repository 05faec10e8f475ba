-- Leases of tourbillon-leases, version 1 of the tables.

create table tourbillon_lease_state(
    id integer primary key check (id = 1),
    -- The versions of the crate that may use the tables: from oldest_ok to version, and later ones that know this version.
    version integer not null,
    oldest_ok integer not null,
    -- The boot of the machine that all times belong to.
    boot text not null,
    -- The last token. All names share one sequence, so the row of a free name can go.
    token integer not null
) strict;
insert into tourbillon_lease_state values (1, 1, 1, '', 0);

-- A row for each name that is held, or reserved. Times are microseconds of the machine's clock. If `mode` is not 0, the
-- name is shared, and its holders are in `tourbillon_lease_share`.
create table tourbillon_lease(
    name text primary key,
    -- 0 exclusive, -1 shared, or the number of permits.
    mode integer not null default 0,
    -- For people. It proves nothing. Null if nobody holds the name, but it is reserved for `waiter`.
    owner text,
    -- What the holder proves with that it holds the name. Null if it stays locked for a rest.
    secret text,
    token integer not null,
    -- Of a shared name: no lease ends later.
    ends integer not null,
    holds integer not null default 1,
    data text not null default '',
    -- The store whose caller has waited longest, and since when.
    waiter text,
    since integer,
    -- Of a shared name: the store whose caller waits to hold it in another mode, or `*` if callers of several stores do,
    -- and when the last of them has asked.
    asker text,
    asked integer,
    -- Of permits: the store for which a place is reserved, and until when.
    turn text,
    reserved integer,
    -- Of the last detach: the secret of the ticket until it is used, the lease after that, and the options.
    ticket text,
    detached integer,
    terms text
) strict, without rowid;

-- A row for each holder of a shared name: a reader, or a permit.
create table tourbillon_lease_share(
    name text not null,
    secret text not null,
    owner text not null,
    place integer not null,
    token integer not null,
    ends integer not null,
    holds integer not null default 1,
    data text not null default '',
    -- Whether the place stays taken for a rest.
    released integer not null default 0,
    primary key (name, secret)
) strict, without rowid;
