/* program.c - the `neap` program: runs scripts as `lua` does, and opens the prompt (lua/repl.lua).
 *
 * Nothing of Neap is loaded until a script says require "neap" or a command uses it, so starting costs what
 * starting Lua costs. It patches neither print nor require nor _G; of the libraries it replaces only
 * coroutine.resume and coroutine.wrap, with the same behaviour, to know which coroutine runs: Ctrl-C must
 * stop that one. An interrupt sets a hook on the running coroutine and on the main one and cancels the
 * running kernel; a second one within two seconds ends the program. The line editor (libedit) is opened
 * only for an interactive terminal. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "neap.h"
#include "neap_lua.h"

#define PROGRAM "neap"

/* ---- state that the signal handler reads ------------------------------------------------------------ */

static lua_State *main_state;              /* set once before the handler is installed */
static lua_State *volatile running;        /* the coroutine that runs now */
static neap_ctx *volatile core;            /* NULL until neap is loaded; set after the next one */
static lua_State *const volatile *in_neap; /* the coroutine that used Neap last: a recompute, perhaps */
static volatile sig_atomic_t requested;    /* an interrupt came and what ran has not ended yet */
static volatile sig_atomic_t interrupted;  /* at the prompt: the line was given up */
static volatile sig_atomic_t returned; /* the next instruction may be the one that marks a value <close> */
static bool stopping;                  /* an interrupt is unwinding: a resumer that catches it stops too */
static int n_stops;                    /* hooks of this interrupt that raised */
static char root[PATH_MAX];            /* folder that holds neap/init.lua; "" if not found */
static char *full_traceback;           /* of the last error, for the prompt's .bt */

/* ---- interrupts ------------------------------------------------------------------------------------- */

#define EACH_STEP (LUA_MASKRET | LUA_MASKCOUNT)

static void stop_here(lua_State *L, lua_Debug *ar);

static void stop_again(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    returned = 1;
    lua_sethook(L, stop_here, EACH_STEP, 1);
}

/* Raises before an instruction, but never before the one after a return, which may be what marks a guard <close>: the
 * guard would stay in force. Nor at a call, which may be that of its __close.
 * A pcall may catch the error, in a loop: so the hooks stay until what runs has ended. The first ones come after a
 * while, so that <close> handlers are not hit, later ones at once: in whoever caught the one before. */
static void stop_here(lua_State *L, lua_Debug *ar)
{
    const bool wait = returned;
    returned = ar->event == LUA_HOOKRET;
    if (requested && (wait || returned)) return;
    lua_sethook(L, NULL, 0, 0);
    if (!requested) return; /* of an interrupt that is over: this coroutine slept then */
    int count = n_stops++ < 3 ? 1000 : 1;
    lua_sethook(main_state, stop_again, LUA_MASKCOUNT, count);
    lua_sethook(L, stop_again, LUA_MASKCOUNT, count);
    stopping = true;
    lua_pushliteral(L, "interrupted!");
    lua_error(L);
}

/* A second one within two seconds, while the first has not yet stopped what runs, ends the program. */
static void on_interrupt(int sig)
{
    static struct timespec last;
    struct timespec now;
    int saved = errno;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double since = (double)(now.tv_sec - last.tv_sec) + (double)(now.tv_nsec - last.tv_nsec) * 1e-9;
    if (requested && since < 2.0) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    last = now;
    requested = returned = 1;
    lua_State *co = running;
    neap_ctx *c = core;
    if (c) neap_cancel(c);
    if (c && *in_neap != main_state) lua_sethook(*in_neap, stop_here, EACH_STEP, 1);
    if (co && co != main_state) lua_sethook(co, stop_here, EACH_STEP, 1);
    lua_sethook(main_state, stop_here, EACH_STEP, 1);
    errno = saved;
}

static void on_interrupt_at_prompt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static void handle_interrupts(void (*handler)(int))
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = handler;
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
}

/* ---- coroutines that tell who runs ------------------------------------------------------------------ */

static lua_State *check_coroutine(lua_State *L)
{
    lua_State *co = lua_tothread(L, 1);
    luaL_argexpected(L, co, 1, "coroutine");
    return co;
}

/* Number of results on L, or -1 with the error value on top of L. As lcorolib.c. */
static int resume(lua_State *L, lua_State *co, int n_args)
{
    int n_results;
    if (!lua_checkstack(co, n_args)) {
        lua_pushliteral(L, "too many arguments to resume");
        return -1;
    }
    lua_xmove(L, co, n_args);
    lua_State *before = running;
    running = co;
    int status = lua_resume(co, L, n_args, &n_results);
    running = before;
    if (status != LUA_OK && status != LUA_YIELD) {
        lua_xmove(co, L, 1);
        return -1;
    }
    if (!lua_checkstack(L, n_results + 1)) {
        lua_pop(co, n_results);
        lua_pushliteral(L, "too many results to resume");
        return -1;
    }
    lua_xmove(co, L, n_results);
    return n_results;
}

static int coroutine_resume(lua_State *L)
{
    lua_State *co = check_coroutine(L);
    int n = resume(L, co, lua_gettop(L) - 1);
    if (n < 0) {
        if (stopping) lua_sethook(L, stop_here, EACH_STEP, 1);
        lua_pushboolean(L, 0);
        lua_insert(L, -2);
        return 2;
    }
    lua_pushboolean(L, 1);
    lua_insert(L, -(n + 1));
    return n + 1;
}

static int call_wrapped(lua_State *L)
{
    lua_State *co = lua_tothread(L, lua_upvalueindex(1));
    int n = resume(L, co, lua_gettop(L));
    if (n >= 0) return n;
    int status = lua_status(co);
    if (status != LUA_OK && status != LUA_YIELD) { /* the error left it open: close its variables */
        status = lua_resetthread(co);
        lua_xmove(co, L, 1);
    }
    if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
        luaL_where(L, 1);
        lua_insert(L, -2);
        lua_concat(L, 2);
    }
    return lua_error(L);
}

static int coroutine_wrap(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_State *co = lua_newthread(L);
    lua_pushvalue(L, 1);
    lua_xmove(L, co, 1);
    lua_pushcclosure(L, call_wrapped, 1);
    return 1;
}

static void track_coroutines(lua_State *L)
{
    static const luaL_Reg tracked[] = {{"resume", coroutine_resume}, {"wrap", coroutine_wrap}, {NULL, NULL}};
    lua_getglobal(L, "coroutine");
    luaL_setfuncs(L, tracked, 0);
    lua_pop(L, 1);
}

/* ---- messages --------------------------------------------------------------------------------------- */

static void say(const char *text)
{
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", PROGRAM, text);
    fflush(stderr);
}

/* Lua's warnings, shown unless a script says warn("@off"). A message may come in pieces. */
static void warning(void *user, const char *text, int to_be_continued)
{
    static bool on = true, inside = false;
    (void)user;
    if (!inside && !to_be_continued && text[0] == '@') {
        if (strcmp(text, "@off") == 0) on = false;
        if (strcmp(text, "@on") == 0) on = true;
        return;
    }
    if (on) {
        if (!inside) fputs("warning: ", stderr);
        fputs(text, stderr);
        if (!to_be_continued) fputc('\n', stderr), fflush(stderr);
    }
    inside = to_be_continued;
}

static bool of_library(const lua_Debug *ar)
{
    size_t n = strlen(root);
    if (ar->what[0] == 'C') return true;
    const char *file = ar->source + 1;
    return n && ar->source[0] == '@' && !strncmp(file, root, n) && !strncmp(file + n, "/neap/", 6);
}

/* Appends the frames from `level` up to the text on top of the stack; `all`: also C's and the library's. */
static void append_frames(lua_State *L, int level, bool all)
{
    lua_Debug ar;
    int shown = 0;
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    for (; lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Slnt", &ar);
        if (!all && of_library(&ar)) continue;
        if (++shown > 30) {
            luaL_addstring(&b, "\n\t...");
            break;
        }
        char where[LUA_IDSIZE + 32], line[400];
        if (ar.currentline > 0) snprintf(where, sizeof where, "%s:%d", ar.short_src, ar.currentline);
        else snprintf(where, sizeof where, "%s", ar.short_src);
        if (ar.what[0] == 'm') snprintf(line, sizeof line, "\n\t%s: in main chunk", where);
        else if (*ar.namewhat) snprintf(line, sizeof line, "\n\t%s: in %s '%s'", where, ar.namewhat, ar.name);
        else if (ar.what[0] == 'C') snprintf(line, sizeof line, "\n\t%s: in ?", where);
        else snprintf(line, sizeof line, "\n\t%s: in function <%s:%d>", where, ar.short_src, ar.linedefined);
        luaL_addstring(&b, line);
    }
    luaL_pushresult(&b);
    if (shown) {
        lua_pushliteral(L, "\nstack traceback:");
        lua_insert(L, -2);
        lua_concat(L, 2);
    }
    lua_concat(L, 2);
}

/* A script that uses a part of Neap without naming it: what to write. */
static void hint_at_require(lua_State *L, const char *message)
{
    static const char *const parts[] = {"neap", "nn", "optim", "data", "checkpoint"};
    const char *global = strstr(message, "nil value (global '");
    if (!global) return;
    global += strlen("nil value (global '");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n = strlen(parts[i]);
        if (strncmp(global, parts[i], n) != 0 || global[n] != '\'') continue;
        lua_pushfstring(L,
                        i ? "; a script begins with: local neap = require \"neap\"; local %s = neap.%s"
                          : "; a script begins with: local neap = require \"neap\"",
                        parts[i], parts[i]);
        lua_concat(L, 2);
        return;
    }
}

/* Message handler: the text with the traceback of the user's frames; all frames are kept for .bt. */
static int add_traceback(lua_State *L)
{
    const char *message = lua_tostring(L, 1);
    if (!message) {
        if (luaL_callmeta(L, 1, "__tostring") && lua_type(L, -1) == LUA_TSTRING) return 1;
        message = lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
    }
    lua_settop(L, 2);
    lua_pushstring(L, message);
    hint_at_require(L, message);
    lua_pushvalue(L, -1);
    append_frames(L, 1, true);
    free(full_traceback);
    full_traceback = strdup(lua_tostring(L, -1));
    lua_pop(L, 1);
    append_frames(L, 1, false);
    return 1;
}

/* Calls the function below its arguments, with traceback and interrupts. */
static int call(lua_State *L, int n_args, int n_results)
{
    int base = lua_gettop(L) - n_args;
    lua_pushcfunction(L, add_traceback);
    lua_insert(L, base);
    struct sigaction before;
    sigaction(SIGINT, NULL, &before);
    handle_interrupts(on_interrupt);
    int status = lua_pcall(L, n_args, n_results, base);
    sigaction(SIGINT, &before, NULL);
    running = main_state;
    stopping = false;
    requested = 0;
    n_stops = 0;
    lua_sethook(main_state, NULL, 0, 0);
    if (core) neap_cancel_clear(core);
    lua_remove(L, base);
    return status;
}

static int report(lua_State *L, int status)
{
    if (status != LUA_OK) {
        const char *message = lua_tostring(L, -1);
        say(message ? message : "(error object is not a string)");
        lua_pop(L, 1);
    }
    return status;
}

/* ---- where the library is --------------------------------------------------------------------------- */

static bool readable(const char *path) { return access(path, R_OK) == 0; }

/* The folder with neap/init.lua: beside the program in the build tree, or under the prefix. */
static void find_root(char *c_folder, size_t n)
{
    static const char *const places[][2] = {{"/lua", "/lua"}, {"/../share/lua/5.4", "/../lib/lua/5.4"}};
    char self[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    c_folder[0] = 0;
    if (len <= 0) return;
    self[len] = 0;
    char *slash = strrchr(self, '/');
    if (!slash) return;
    *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char path[PATH_MAX + 64], plain[PATH_MAX];
        snprintf(path, sizeof path, "%s%s/neap/init.lua", self, places[i][0]);
        if (!readable(path)) continue;
        snprintf(path, sizeof path, "%s%s", self, places[i][0]);
        if (!realpath(path, plain)) continue;
        snprintf(root, sizeof root, "%s", plain);
        snprintf(c_folder, n, "%s%s", self, places[i][1]);
        return;
    }
}

/* package.path and package.cpath look there first. */
static void set_paths(lua_State *L)
{
    char c_folder[PATH_MAX + 64];
    find_root(c_folder, sizeof c_folder);
    if (!root[0]) return;
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "path");
    lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;%s", root, root, lua_tostring(L, -1));
    lua_setfield(L, -3, "path");
    lua_pop(L, 1);
    lua_getfield(L, -1, "cpath");
    lua_pushfstring(L, "%s/?.so;%s", c_folder, lua_tostring(L, -1));
    lua_setfield(L, -3, "cpath");
    lua_pop(L, 2);
}

/* A file of the user's that has the module's name: require would find it under the stock program, or so its
 * owner thinks. Said once, when neap is loaded. */
static void name_the_shadow(lua_State *L)
{
    static const char *const names[] = {"./neap.lua", "./neap/init.lua"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char theirs[PATH_MAX], ours[PATH_MAX + 32], real[PATH_MAX];
        if (!readable(names[i]) || !realpath(names[i], theirs)) continue;
        snprintf(ours, sizeof ours, "%s/neap/init.lua", root);
        if (realpath(ours, real) && !strcmp(theirs, real)) continue;
        lua_pushfstring(L,
                        "%s has the name of the module: require \"neap\" loads the module, not this file; "
                        "give the file another name",
                        names[i]);
        lua_warning(L, lua_tostring(L, -1), 0);
        lua_pop(L, 1);
    }
}

/* package.preload.neap: loads the library's init.lua and learns the context, so that Ctrl-C reaches it. */
static int load_neap(lua_State *L)
{
    name_the_shadow(L);
    lua_settop(L, 1);
    lua_pushfstring(L, "%s/neap/init.lua", root);
    if (luaL_loadfile(L, lua_tostring(L, 2)) != LUA_OK) return lua_error(L);
    lua_pushvalue(L, 1);
    lua_pushvalue(L, 2);
    lua_call(L, 2, 1);
    in_neap = neap_lua_running(L);
    core = neap_lua_context(L);
    return 1;
}

static void preload(lua_State *L)
{
    if (!root[0]) return;
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_pushcfunction(L, load_neap);
    lua_setfield(L, -2, "neap");
    lua_pop(L, 1);
}

/* ---- the line editor -------------------------------------------------------------------------------- */

static struct {
    char *(*readline)(const char *prompt);
    int (*add_history)(const char *line);
    int (*read_history)(const char *path);
    int (*write_history)(const char *path);
    int (*stifle_history)(int n);
    int *completion_over;
    char history[PATH_MAX];
} editor;

static const char completer[] =
    "neap.complete"; /* registry: text -> list of whole words, their common part first */

/* light userdata: the text, where the list goes. */
static int make_completions(lua_State *L)
{
    char ***out = lua_touserdata(L, 2);
    lua_getfield(L, LUA_REGISTRYINDEX, completer);
    lua_pushstring(L, lua_touserdata(L, 1));
    lua_call(L, 1, 1);
    size_t n = lua_rawlen(L, -1);
    char **list = n ? calloc(n + 1, sizeof *list) : NULL;
    for (size_t i = 0; list && i < n; i++, lua_pop(L, 1)) {
        lua_rawgeti(L, 3, (lua_Integer)i + 1);
        if (!(list[i] = strdup(lua_tostring(L, -1)))) break;
    }
    *out = list;
    return 0;
}

/* The editor's hook. No file names follow when there is nothing; an error is nothing, too. */
static char **complete(const char *text, int start, int end)
{
    lua_State *L = main_state;
    char **list = NULL;
    (void)start, (void)end;
    *editor.completion_over = 1;
    if (!*text || !lua_checkstack(L, 3)) return NULL;
    lua_pushcfunction(L, make_completions);
    lua_pushlightuserdata(L, (void *)text);
    lua_pushlightuserdata(L, (void *)&list);
    if (lua_pcall(L, 2, 0, 0) != LUA_OK) lua_pop(L, 1);
    return list;
}

static void make_folders(char *path)
{
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
}

static void *symbol(void *lib, const char *name) { return dlsym(lib, name); }

/* Tab completes, where the editor has the hooks for it. */
static void open_completion(void *lib)
{
    static const char breaks[] = " \t\n+-*/%^#&~|<>=(){}[];,\"'";
    char **(**hook)(const char *, int, int) = symbol(lib, "rl_attempted_completion_function");
    const char **words = symbol(lib, "rl_basic_word_break_characters");
    int *space = symbol(lib, "rl_completion_append_character");
    editor.completion_over = symbol(lib, "rl_attempted_completion_over");
    if (!hook || !words || !space || !editor.completion_over) return;
    *hook = complete;
    *words = breaks;
    *space = 0;
}

static void open_editor(void)
{
    if (!isatty(0) || !isatty(1)) return;
    void *lib = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!lib) return;
    void *f[5] = {symbol(lib, "readline"), symbol(lib, "add_history"), symbol(lib, "read_history"),
                  symbol(lib, "write_history"), symbol(lib, "stifle_history")};
    for (int i = 0; i < 5; i++)
        if (!f[i]) return;
    memcpy(&editor.readline, &f[0], sizeof f[0]);
    memcpy(&editor.add_history, &f[1], sizeof f[1]);
    memcpy(&editor.read_history, &f[2], sizeof f[2]);
    memcpy(&editor.write_history, &f[3], sizeof f[3]);
    memcpy(&editor.stifle_history, &f[4], sizeof f[4]);
    open_completion(lib);
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME"), *under = "";
    if (!state || !*state) state = home, under = "/.local/state";
    if (!state || !*state) return;
    int n = snprintf(editor.history, sizeof editor.history, "%s%s/neap/history", state, under);
    if (n < 0 || (size_t)n >= sizeof editor.history) editor.history[0] = 0;
    if (editor.history[0]) {
        make_folders(editor.history);
        editor.read_history(editor.history);
        editor.stifle_history(2000);
    }
}

/* prompt -> the line; nil at the end of the input; false when Ctrl-C gave the line up. */
static int prompt_line(lua_State *L)
{
    const char *prompt = luaL_checkstring(L, 1);
    interrupted = 0;
    handle_interrupts(on_interrupt_at_prompt);
    bool got = false;
    if (editor.readline) {
        char *line = editor.readline(prompt);
        if (line) lua_pushstring(L, line), got = true;
        free(line);
    } else {
        luaL_Buffer b;
        luaL_buffinit(L, &b);
        fputs(prompt, stdout);
        fflush(stdout);
        char piece[512];
        while (fgets(piece, sizeof piece, stdin)) {
            got = true;
            size_t n = strlen(piece);
            bool end = n > 0 && piece[n - 1] == '\n';
            luaL_addlstring(&b, piece, end ? n - 1 : n);
            if (end) break;
        }
        luaL_pushresult(&b);
    }
    handle_interrupts(SIG_DFL);
    if (got && !interrupted) return 1;
    if (interrupted) {
        clearerr(stdin);
        fputc('\n', stdout);
        lua_pushboolean(L, 0);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static int prompt_history(lua_State *L)
{
    const char *line = luaL_checkstring(L, 1);
    if (editor.add_history && *line) {
        editor.add_history(line);
        if (editor.history[0]) editor.write_history(editor.history);
    }
    return 0;
}

/* f, ... -> true, results or false, message. */
static int prompt_call(lua_State *L)
{
    int status = call(L, lua_gettop(L) - 1, LUA_MULTRET);
    lua_pushboolean(L, status == LUA_OK);
    lua_insert(L, 1);
    return lua_gettop(L);
}

/* complete(f): f(text) -> list. */
static int prompt_complete(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_settop(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, completer);
    return 0;
}

static int prompt_traceback(lua_State *L)
{
    lua_pushstring(L, full_traceback);
    return 1;
}

static int interactive(lua_State *L)
{
    static const luaL_Reg host[] = {{"line", prompt_line},         {"history", prompt_history},
                                    {"call", prompt_call},         {"traceback", prompt_traceback},
                                    {"complete", prompt_complete}, {NULL, NULL}};
    open_editor();
    lua_getglobal(L, "require");
    lua_pushliteral(L, "neap.repl");
    if (report(L, call(L, 1, 1)) != LUA_OK) return LUA_ERRRUN;
    puts("? shows help, Ctrl-D leaves");
    luaL_newlib(L, host);
    return report(L, lua_pcall(L, 1, 0, 0));
}

/* ---- command line ----------------------------------------------------------------------------------- */

static void usage(FILE *out)
{
    fprintf(out,
            "usage: %s [options] [script [args]]\n"
            "  -e stat   run the string 'stat'\n"
            "  -i        open the prompt after the script\n"
            "  -l mod    require library 'mod' into global 'mod'\n"
            "  -l g=mod  require library 'mod' into global 'g'\n"
            "  -v        show the version (also --version)\n"
            "  -E        ignore environment variables of Lua\n"
            "  -W        turn warnings on (they are)\n"
            "  --        stop handling options\n"
            "  -         stop handling options and run stdin\n"
            "  --help    show this\n"
            "Without a script it opens the prompt; ? shows help there.\n",
            PROGRAM);
}

static void print_version(void)
{
    printf("Neap %s (%s)\n", neap_version(), LUA_RELEASE);
    fflush(stdout);
}

typedef struct options {
    bool e, i, v, E, bad, help;
    int first; /* index of the script's name, or of what cannot be understood */
} options;

static options read_options(char **argv)
{
    options o = {0};
    int i;
    for (i = 1; argv[i]; i++) {
        const char *a = argv[i];
        o.first = i;
        if (a[0] != '-') return o;
        switch (a[1]) {
        case 0: return o; /* '-' */
        case '-':
            if (!strcmp(a, "--help")) return o.help = true, o;
            if (!strcmp(a, "--version")) {
                o.v = true;
                continue;
            }
            if (a[2]) return o.bad = true, o;
            o.first = i + 1;
            return o;
        case 'E': o.E = true; break;
        case 'i': o.i = o.v = true; break;
        case 'v': o.v = true; break;
        case 'W': break;
        case 'e': o.e = true; /* fall through */
        case 'l':
            if (!a[2] && (!argv[++i] || argv[i][0] == '-')) return o.bad = true, o;
            continue;
        default: return o.bad = true, o;
        }
        if (a[2]) return o.bad = true, o;
    }
    o.first = i;
    return o;
}

static int run_string(lua_State *L, const char *code, const char *name)
{
    int status = luaL_loadbuffer(L, code, strlen(code), name);
    if (status == LUA_OK) status = call(L, 0, 0);
    return report(L, status);
}

static int run_library(lua_State *L, const char *what)
{
    const char *equal = strchr(what, '=');
    const char *module = equal ? equal + 1 : what;
    lua_getglobal(L, "require");
    lua_pushstring(L, module);
    int status = call(L, 1, 1);
    if (status == LUA_OK) {
        lua_pushlstring(L, what, equal ? (size_t)(equal - what) : strlen(what));
        lua_insert(L, -2);
        lua_pushglobaltable(L);
        lua_insert(L, -3);
        lua_settable(L, -3);
        lua_pop(L, 1);
    }
    return report(L, status);
}

static bool run_options(lua_State *L, char **argv, int n)
{
    for (int i = 1; i < n; i++) {
        char kind = argv[i][1]; /* of --version: '-' */
        if (kind != 'e' && kind != 'l') continue;
        const char *extra = argv[i] + 2;
        if (!*extra) extra = argv[++i];
        int status = kind == 'e' ? run_string(L, extra, "=(command line)") : run_library(L, extra);
        if (status != LUA_OK) return false;
    }
    return true;
}

static int run_init(lua_State *L)
{
    const char *name = "=LUA_INIT_5_4", *init = getenv(name + 1);
    if (!init) name = "=LUA_INIT", init = getenv(name + 1);
    if (!init) return LUA_OK;
    if (init[0] != '@') return run_string(L, init, name);
    int status = luaL_loadfile(L, init + 1);
    if (status == LUA_OK) status = call(L, 0, 0);
    return report(L, status);
}

static int run_script(lua_State *L, char **argv, int argc, int first)
{
    const char *name = argv[first];
    if (!strcmp(name, "-") && strcmp(argv[first - 1], "--") != 0) name = NULL;
    int status = luaL_loadfile(L, name);
    if (status == LUA_OK) {
        int n = argc - first - 1;
        luaL_checkstack(L, n, "too many arguments to script");
        for (int i = first + 1; i < argc; i++) lua_pushstring(L, argv[i]);
        status = call(L, n, LUA_MULTRET);
    }
    return report(L, status);
}

static void set_arg(lua_State *L, char **argv, int argc, int script)
{
    if (script == argc) script = 0;
    lua_createtable(L, argc - script, script + 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - script);
    }
    lua_setglobal(L, "arg");
}

/* Under lua_pcall: argc, argv -> true when all went well. */
static int run(lua_State *L)
{
    int argc = (int)lua_tointeger(L, 1);
    char **argv = lua_touserdata(L, 2);
    options o = read_options(argv);
    lua_settop(L, 0);
    if (o.bad) {
        fprintf(stderr, "%s: unrecognized option '%s'\n", PROGRAM, argv[o.first]);
        usage(stderr);
        return 0;
    }
    if (o.help) {
        usage(stdout);
        lua_pushboolean(L, 1);
        return 1;
    }
    if (o.v) print_version();
    if (o.E) {
        lua_pushboolean(L, 1);
        lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV");
    }
    lua_setwarnf(L, warning, NULL);
    luaL_openlibs(L);
    track_coroutines(L);
    set_paths(L);
    preload(L);
    set_arg(L, argv, argc, o.first);
    if (!o.E && run_init(L) != LUA_OK) return 0;
    if (!run_options(L, argv, o.first)) return 0;
    if (o.first < argc && run_script(L, argv, argc, o.first) != LUA_OK) return 0;
    if (o.i) {
        if (interactive(L) != LUA_OK) return 0;
    } else if (o.first == argc && !o.e && !o.v) {
        if (isatty(0)) {
            print_version();
            if (interactive(L) != LUA_OK) return 0;
        } else {
            int status = luaL_loadfile(L, NULL);
            if (status == LUA_OK) status = call(L, 0, 0);
            if (report(L, status) != LUA_OK) return 0;
        }
    }
    lua_pushboolean(L, 1);
    return 1;
}

int main(int argc, char **argv)
{
    lua_State *L = luaL_newstate();
    if (!L) {
        say("cannot create a Lua state: not enough memory");
        return EXIT_FAILURE;
    }
    main_state = running = L;
    lua_pushcfunction(L, run);
    lua_pushinteger(L, argc);
    lua_pushlightuserdata(L, argv);
    int status = lua_pcall(L, 2, 1, 0);
    bool ok = lua_toboolean(L, -1);
    report(L, status);
    core = NULL;
    lua_close(L);
    free(full_traceback);
    return status == LUA_OK && ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
