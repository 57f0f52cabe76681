/* Writes tests/data/sss_idmap.txt: the ids that the library of SSSD computes from some SIDs. Build and run:
 *   cc -o idmap tests/data/sss_idmap.c -lsss_idmap && ./idmap > tests/data/sss_idmap.txt
 * Debian packages: gcc, libsss-idmap-dev. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <sss_idmap.h>

struct settings {
    id_t lower, upper, size;
};

static const struct settings SETTINGS[] = {
    {200000, 2000200000, 200000},
    {100000, 2000100000, 1000000},
    {10000, 1000000, 10000},
};

static const char *const DOMAINS[] = {
    "S-1-5-21-123-456-789",
    "S-1-5-21-2153326666-2176343378-3404031434",
    "S-1-5-21-1004336348-1177238915-682003330",
    "S-1-5-21-3623811015-3361044348-30300820",
    "S-1-5-21-0-0-0",
    "S-1-5-21-4294967295-4294967295-4294967295",
};

static const uint32_t RIDS[] = {500, 513, 1103, 9999, 10000, 199999, 200000, 399999, 400001, 2147483647};

/* As SSSD registers a domain: sdap_idmap_add_domain in src/providers/ldap/sdap_idmap.c. */
static enum idmap_error_code add_domain(struct sss_idmap_ctx *ctx, const char *name, const char *sid, id_t slice)
{
    struct sss_idmap_range range;
    enum idmap_error_code err = sss_idmap_calculate_range(ctx, sid, &slice, &range);
    if (err != IDMAP_SUCCESS)
        return err;
    return sss_idmap_add_auto_domain_ex(ctx, name, sid, &range, NULL, 0, false, NULL, NULL);
}

static struct sss_idmap_ctx *context(const struct settings *settings)
{
    struct sss_idmap_ctx *ctx;
    if (sss_idmap_init(NULL, NULL, NULL, &ctx) != IDMAP_SUCCESS)
        return NULL;
    sss_idmap_ctx_set_lower(ctx, settings->lower);
    sss_idmap_ctx_set_upper(ctx, settings->upper);
    sss_idmap_ctx_set_rangesize(ctx, settings->size);
    return ctx;
}

static void line(struct sss_idmap_ctx *ctx, const struct settings *settings, const char *domains, const char *domain,
                 uint32_t rid)
{
    char sid[128];
    uint32_t id;
    snprintf(sid, sizeof sid, "%s-%u", domain, rid);
    printf("%u %u %u %s %s ", settings->lower, settings->upper, settings->size, domains, sid);
    sss_idmap_sid_to_unix(ctx, sid, &id) == IDMAP_SUCCESS ? printf("%u\n", id) : printf("-\n");
}

/* A domain whose slice is that of DOMAINS[0] already: it gets the next one. */
static int two_domains(const struct settings *settings)
{
    struct sss_idmap_range first, range;
    char second[128], both[256];
    struct sss_idmap_ctx *ctx = context(settings);
    id_t slice = -1;
    if (!ctx || sss_idmap_calculate_range(ctx, DOMAINS[0], &slice, &first) != IDMAP_SUCCESS)
        return 1;
    uint32_t number = 0;
    do {
        snprintf(second, sizeof second, "S-1-5-21-1-2-%u", ++number);
        slice = -1;
        sss_idmap_calculate_range(ctx, second, &slice, &range);
    } while (range.min != first.min);
    if (add_domain(ctx, "a.example.org", DOMAINS[0], -1) || add_domain(ctx, "b.example.org", second, -1))
        return 1;
    snprintf(both, sizeof both, "%s,%s", DOMAINS[0], second);
    line(ctx, settings, both, DOMAINS[0], 1103);
    line(ctx, settings, both, second, 1103);
    sss_idmap_free(ctx);
    return 0;
}

int main(void)
{
    puts("# lower upper size domains SID uid: by libsss_idmap, see sss_idmap.c");
    for (size_t s = 0; s < sizeof SETTINGS / sizeof *SETTINGS; s++)
        for (size_t d = 0; d < sizeof DOMAINS / sizeof *DOMAINS; d++)
            for (size_t r = 0; r < sizeof RIDS / sizeof *RIDS; r++) {
                struct sss_idmap_ctx *ctx = context(&SETTINGS[s]);
                if (!ctx || add_domain(ctx, "ad.example.org", DOMAINS[d], -1) != IDMAP_SUCCESS)
                    return 1;
                line(ctx, &SETTINGS[s], DOMAINS[d], DOMAINS[d], RIDS[r]);
                sss_idmap_free(ctx);
            }
    return two_domains(&SETTINGS[0]) || two_domains(&SETTINGS[2]);
}
