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

-- A row for each name that is held, or reserved. Times are microseconds of the machine's clock.
create table tourbillon_lease(
    name text primary key,
    -- For people. It proves nothing. Null if nobody holds the name, but it is reserved for `waiter`.
    owner text,
    -- What the holder proves with that it holds the name. Null if it stays locked for a rest.
    secret text,
    token integer not null,
    ends integer not null,
    holds integer not null default 1,
    data text not null default '',
    -- The store whose caller has waited longest, and since when.
    waiter text,
    since integer,
    -- Of the last detach: the secret of the ticket until it is used, the lease after that, and the options.
    ticket text,
    detached integer,
    terms text
) strict, without rowid;
